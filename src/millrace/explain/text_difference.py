"""What differs between two programs in StableHLO, the largest difference first.

    constant tensor<f32> 0.345 -> 0.678
    tensor<32x10xf32> -> tensor<17x10xf32> in dot_general and 4 other operations
    2 x stablehlo.tanh added

Operations are compared without the numbers of their values and without numbers at all, so that
those which only have other shapes still find each other. It takes 0.5 s for two programs of 1 MB.
"""

import difflib
import hashlib
import math
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millrace.explain.words import values

# Where two programs have hardly anything in common, operations are only counted: to align more
# lines than this takes longer than to compile them.
MOST_ALIGNED = 4_000
SHORT = 40  # characters of a constant that is written out

_VALUE = re.compile(r"%[\w#]+(:\d+)?")
_LOCATION = re.compile(r"\s*loc\((.*)\)\s*$")
_INNER_LOCATION = re.compile(r" loc\((#\w+|\"[^\"]*\")\)")  # of an argument
_DEFINITION = re.compile(r"^(#loc\w*) = loc\((.*)\)\s*$")
_TENSOR = re.compile(r"tensor<([^<>]*)>")
_CONSTANT = re.compile(r"dense<(\"[^\"]*\"|[^>]*)>")
_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"(?:^|= )\"?([a-z_]+\.[\w.]+|call|return)\b")
_SYMBOL = re.compile(r"@(\w+?)(_\d+)?\b")
_FILE = re.compile(r"\"([^\"]+)\":(\d+)")
_SCOPE = re.compile(r"^\"([^\"]+)\"\(")


@dataclass(frozen=True, slots=True)
class _Line:
    """An operation."""

    text: str  # without the numbers of values
    location: str

    @property
    def skeleton(self) -> str:
        """What is left without shapes and constants."""
        return _NUMBER.sub("", _TENSOR.sub("tensor", _CONSTANT.sub("dense", self.text)))

    @property
    def name(self) -> str:
        """Of the operation, such as `stablehlo.add`."""
        match = _NAME.search(self.text)
        return match[1] if match else ""


@dataclass(slots=True)
class _Found:
    """One difference, and the operations that have it."""

    size: int  # elements
    operations: list[str] = field(default_factory=list)
    location: str = ""


def difference(old: str, new: str, limit: int = 5) -> tuple[str, ...]:
    """Returns what differs between two programs, at most `limit` texts and how many are left.

    Args:
        old: as `jax.stages.Lowered.as_text()` writes it, with or without places in the source.
        new: the same.
        limit: of texts.
    """
    before, after = _lines(old), _lines(new)
    shapes: dict[tuple[str, str], _Found] = {}
    others: dict[str, _Found] = {}
    counts: Counter[str] = Counter()
    for one, other in _pairs(before, after):
        if one is None or other is None:
            line = one or other
            if line is not None and line.name:
                counts[line.name] += 1 if one is None else -1
        elif one.text != other.text:
            _compare(one, other, shapes, others)
    for (a, b), found in shapes.items():
        others[f"{a} -> {b}{_in(found.operations, found.location)}"] = found
    texts = sorted(others, key=lambda text: -others[text].size)
    texts += [
        f"{abs(number)} x {name} {'added' if number > 0 else 'removed'}"
        for name, number in sorted(counts.items(), key=lambda item: -abs(item[1]))
        if number
    ]
    if not texts and [x.text for x in before] != [x.text for x in after]:
        texts = ["the same operations in another order"]
    rest = len(texts) - limit
    return (*texts[:limit], *([f"and {rest} more"] if rest > 0 else []))


def _lines(text: str) -> list[_Line]:
    places: dict[str, str] = {}
    rows = []
    for row in text.splitlines():
        if row.startswith("#loc"):
            if match := _DEFINITION.match(row):
                places[match[1]] = match[2]
        elif row.strip():
            rows.append(row.strip())
    lines = []
    for row in rows:
        match = _LOCATION.search(row)
        place = _place(match[1], places) if match else ""
        row = _INNER_LOCATION.sub("", row[: match.start()] if match else row)
        lines.append(_Line(_SYMBOL.sub(r"@\1", _VALUE.sub("%", row)), place))
    return [line for line in lines if line.text not in ("}", "{")]


def _place(reference: str, places: dict[str, str], depth: int = 8) -> str:
    """Returns the scope and the line of source of a location, which may refer to others."""
    texts = [reference]
    while depth and (match := re.search(r"#loc\w*", texts[-1])):
        texts.append(places.get(match[0], ""))
        depth -= 1
    scope = next((m[1] for text in texts if (m := _SCOPE.match(text))), "")
    line = next((m for text in texts if (m := _FILE.search(text))), None)
    parts = [scope, f"{line[1].rpartition('/')[2]}:{line[2]}" if line else ""]
    shown = ", ".join(part for part in parts if part)
    return f" at {shown}" if shown else ""


def _pairs(
    before: Sequence[_Line], after: Sequence[_Line]
) -> Iterator[tuple[_Line | None, _Line | None]]:
    """Aligns operations; what has no counterpart is with None."""
    one, other = [x.skeleton for x in before], [x.skeleton for x in after]
    if one == other:
        yield from zip(before, after, strict=True)
        return
    start = _common(one, other)
    end = min(_common(one[::-1], other[::-1]), min(len(one), len(other)) - start)
    yield from zip(before[:start], after[:start], strict=True)
    yield from zip(before[len(one) - end :], after[len(other) - end :], strict=True)
    one, other = one[start : len(one) - end], other[start : len(other) - end]
    if max(len(one), len(other)) > MOST_ALIGNED:
        yield from ((line, None) for line in before[start : len(before) - end])
        yield from ((None, line) for line in after[start : len(after) - end])
        return
    for tag, i, j, k, n in difflib.SequenceMatcher(None, one, other).get_opcodes():
        olds, news = before[start + i : start + j], after[start + k : start + n]
        if tag == "equal":
            yield from zip(olds, news, strict=True)
        else:
            yield from _by_name(olds, news)


def _by_name(
    olds: Sequence[_Line], news: Sequence[_Line]
) -> Iterator[tuple[_Line | None, _Line | None]]:
    """Pairs operations of the same name, in order; others have no counterpart."""
    waiting: dict[str, deque[_Line]] = {}
    for line in olds:
        waiting.setdefault(line.name, deque()).append(line)
    for line in news:
        same = waiting.get(line.name)
        yield (same.popleft() if same else None), line
    yield from ((line, None) for left in waiting.values() for line in left)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns how many elements two sequences have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _compare(
    one: _Line, other: _Line, shapes: dict[tuple[str, str], _Found], others: dict[str, _Found]
) -> None:
    """Adds what differs between two operations of one kind."""
    tensors = list(zip(_TENSOR.findall(one.text), _TENSOR.findall(other.text), strict=False))
    differing = [(a, b) for a, b in tensors if a != b]
    if differing:
        for a, b in dict.fromkeys(differing):
            found = shapes.setdefault((f"tensor<{a}>", f"tensor<{b}>"), _Found(0))
            found.size = max(_elements(a), _elements(b))
            found.operations.append(other.name)
            found.location = found.location or (other.location and f"{other.location},")
        return
    size = max((_elements(b) for _, b in tensors), default=0)
    constants = _CONSTANT.findall(one.text), _CONSTANT.findall(other.text)
    if constants[0] != constants[1] and tensors:
        olds, news = (" ".join(map(_constant, each)) for each in constants)
        text = f"constant tensor<{tensors[-1][1]}> {olds} -> {news}"
    else:
        text = f"{other.name or 'program'}: {values(one.text, other.text)}"
    others.setdefault(f"{text}{other.location}", _Found(size))


def _elements(tensor: str) -> int:
    return math.prod(int(part) for part in tensor.split("x") if part.isdigit())


def _constant(text: str) -> str:
    """Returns a number as Python writes it, and what stands for a long constant."""
    try:
        return f"{float(text):g}"
    except ValueError:
        pass
    if len(text) <= SHORT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _in(operations: Sequence[str], location: str) -> str:
    """Returns the operations that have another shape; of a long list the most telling one."""
    names = Counter(name for name in operations if name)
    if not names:
        return ""
    heavy = ("stablehlo.dot_general", "stablehlo.convolution")
    first = next((name for name in heavy if name in names), names.most_common(1)[0][0])
    rest = len(operations) - 1
    if not rest:
        return f" in {first}{location.removesuffix(',')}"
    return f" in {first}{location} and {rest} other operation{'s' if rest > 1 else ''}"
