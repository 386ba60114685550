"""The differences between two programs in StableHLO, the largest first.

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

import jax

from millrace.compilation.explain.words import common_start, values
from millrace.errors import OptionError

# Where two programs have hardly anything in common, operations are only counted: to align more
# lines than this takes longer than to compile them.
MOST_ALIGNED = 4_000
SHORT = 40  # characters of a constant that is written out

_VALUE = re.compile(r"%[\w#]+(:\d+)?")
_LOCATION = re.compile(r"\s*loc\(.*\)\s*$")
_INNER_LOCATION = re.compile(r" loc\((#\w+|\"[^\"]*\")\)")  # of an argument
_TENSOR = re.compile(r"tensor<([^<>]*)>")
_CONSTANT = re.compile(r"dense<(\"[^\"]*\"|[^>]*)>")
_NUMBER = re.compile(r"\d+")
_NAME = re.compile(r"(?:^|= )\"?([a-z_]+\.[\w.]+|call|return)\b")
_SYMBOL = re.compile(r"@(\w+?)(_\d+)?\b")

_Pairs = Iterator[tuple[str | None, str | None]]  # lines of the programs


def diff_programs(
    a: jax.stages.Lowered | str, b: jax.stages.Lowered | str, limit: int = 5
) -> tuple[str, ...]:
    """Returns the differences of two programs before XLA compiles them, the largest first.

        diff_programs(f.lower(x), g.lower(x))  ->  ("constant tensor<f32> 10 -> 0.3",)

    Constants are named with both values, long ones by a hash of each, so that weights frozen into a
    program are found, too. Equal programs give an empty tuple.

    Args:
        a: the result of `lower(...)` of `millrace.compile` or `jax.jit`, or its `as_text()`.
        b: the other program, likewise.
        limit: most differences to return; one more text gives the number of others.

    Raises:
        OptionError: if one of them is neither.
    """
    return difference(_text("a", a), _text("b", b), limit)


def _text(name: str, program: object) -> str:
    text = program if isinstance(program, str) else ""
    if isinstance(program, jax.stages.Lowered):
        text = program.as_text()
    if "module" not in text:
        raise OptionError(
            f"diff_programs() compares lowered programs. Received: {name}={program!r:.80}. Set "
            f"{name}=fn.lower(*args), or the text of it: fn.lower(*args).as_text()."
        )
    return text


def difference(old: str, new: str, limit: int = 5) -> tuple[str, ...]:
    """Returns the differences of two programs, at most `limit`, and the number of others.

    Args:
        old: text of `jax.stages.Lowered.as_text()`; locations in the source do not count.
        new: the other program, likewise.
        limit: most differences.
    """
    before, after = _operations(old), _operations(new)
    sizes: dict[str, int] = {}  # of each text, in elements
    shapes: dict[tuple[str, str], list[str]] = {}  # lines by old and new shape
    counts: Counter[str] = Counter()
    for one, other in _pairs(before, after):
        if one is not None and other is not None:
            if one != other:
                _compare(one, other, shapes, sizes)
        elif one is not None:
            counts[_name(one)] -= 1
        elif other is not None:
            counts[_name(other)] += 1
    for (a, b), lines in shapes.items():
        text = f"tensor<{a}> -> tensor<{b}>{_operation_names(lines)}"
        sizes[text] = max(_elements(a), _elements(b))
    texts = sorted(sizes, key=lambda text: -sizes[text])
    texts += [
        f"{abs(number)} x {name} {'added' if number > 0 else 'removed'}"
        for name, number in sorted(counts.items(), key=lambda item: -abs(item[1]))
        if number and name
    ]
    if not texts and before != after:
        texts = ["the same operations in another order"]
    more = len(texts) - limit
    return (*texts[:limit], *([f"and {more} more"] if more > 0 else []))


def _operations(text: str) -> list[str]:
    """Returns the lines of a program, without the numbers of values and without locations."""
    rows = [_INNER_LOCATION.sub("", _LOCATION.sub("", row.strip())) for row in text.splitlines()]
    kept = [row for row in rows if row not in ("", "}", "{") and not row.startswith("#loc")]
    return [_SYMBOL.sub(r"@\1", _VALUE.sub("%", row)) for row in kept]


def _skeleton(line: str) -> str:
    """Returns a line without shapes and constants."""
    return _NUMBER.sub("", _TENSOR.sub("tensor", _CONSTANT.sub("dense", line)))


def _name(line: str) -> str:
    """Returns the name of an operation, such as `stablehlo.add`."""
    match = _NAME.search(line)
    return match[1] if match else ""


def _pairs(before: Sequence[str], after: Sequence[str]) -> _Pairs:
    """Aligns operations; one without a counterpart is paired with None."""
    one, other = list(map(_skeleton, before)), list(map(_skeleton, after))
    start = common_start(one, other)
    end = min(common_start(one[::-1], other[::-1]), min(len(one), len(other)) - start)
    last, end = len(one) - end, len(other) - end
    yield from zip(before[:start], after[:start], strict=True)
    yield from zip(before[last:], after[end:], strict=True)
    before, after = before[start:last], after[start:end]
    one, other = one[start:last], other[start:end]
    if max(len(one), len(other)) > MOST_ALIGNED:
        yield from ((line, None) for line in before)
        yield from ((None, line) for line in after)
        return
    for tag, i, j, k, n in difflib.SequenceMatcher(None, one, other).get_opcodes():
        if tag == "equal":
            yield from zip(before[i:j], after[k:n], strict=True)
        else:
            yield from _by_name(before[i:j], after[k:n])


def _by_name(olds: Sequence[str], news: Sequence[str]) -> _Pairs:
    """Pairs operations of the same name, in order; others have no counterpart."""
    waiting: dict[str, deque[str]] = {}
    for line in olds:
        waiting.setdefault(_name(line), deque()).append(line)
    for line in news:
        same = waiting.get(_name(line))
        yield (same.popleft() if same else None), line
    yield from ((line, None) for left in waiting.values() for line in left)


def _compare(
    one: str, other: str, shapes: dict[tuple[str, str], list[str]], sizes: dict[str, int]
) -> None:
    """Adds the difference between two operations of one kind."""
    tensors = list(zip(_TENSOR.findall(one), _TENSOR.findall(other), strict=False))
    differing = [(a, b) for a, b in tensors if a != b]
    if differing:
        for pair in dict.fromkeys(differing):
            shapes.setdefault(pair, []).append(other)
        return
    olds, news = _CONSTANT.findall(one), _CONSTANT.findall(other)
    if olds != news and tensors:
        old, new = (" ".join(map(_constant, each)) for each in (olds, news))
        text = f"constant tensor<{tensors[-1][1]}> {old} -> {new}"
    else:
        text = f"{_name(other) or 'program'}: {values(one, other)}"
    size = max((_elements(b) for _, b in tensors), default=0)
    sizes.setdefault(text, size)


def _elements(tensor: str) -> int:
    return math.prod(int(part) for part in tensor.split("x") if part.isdigit())


def _constant(text: str) -> str:
    """Returns a number as Python writes it; of a long constant a hash."""
    try:
        return f"{float(text):g}"
    except ValueError:
        pass
    if len(text) <= SHORT:
        return text
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _operation_names(lines: Sequence[str]) -> str:
    """Returns the operations with another shape; of a long list the most important one."""
    names = Counter(filter(None, map(_name, lines)))
    if not names:
        return ""
    heavy = ("stablehlo.dot_general", "stablehlo.convolution")
    first = next((name for name in heavy if name in names), names.most_common(1)[0][0])
    count = len(lines) - 1
    others = f" and {count} other operation{'s' if count > 1 else ''}" if count else ""
    return f" in {first}{others}"
