"""What has come, gone and changed between two descriptions of programs, in words.

Always compared: programs, arguments and results, owners and passes, and the FLOPs of products.
Between versions of XLA the same products are fused with other operations, and some of these are
computed more than once, or simplified. So all FLOPs, bytes, numbers of operations and the peak are
compared under the versions alone that wrote the text.

Layers belong together by the order and the products of those of their class, not by their numbers:
where one has come, those after it are still the same. One with another name and the same numbers
is the same layer, too.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from millrace.operations.golden import GoldenProgram, GoldenRow, GoldenText, RowKey

GoldenRows = dict[RowKey, GoldenRow]
LayerRows = Mapping[str, GoldenRow]
LayerTable = dict[str, dict[str, GoldenRow]]
_NUMBER = re.compile(r"_\d+$")  # at the end of names that Keras makes
_MOST_LINES = 60
_ROLES = {"layer": "layer "}


def differences(expected: GoldenText, made: GoldenText) -> list[str]:
    """Returns the differences as lines of text; none if the programs are the same.

    Args:
        expected: as it was written.
        made: by the test.
    """
    is_exact = expected.environment == made.environment
    lines: list[str] = []
    before, after = list(expected.programs), list(made.programs)
    for old, new in _pairs(before, after):
        found = [*_Comparison(old, new, is_exact).lines()]
        lines += [new.name, *(f"  {each}" for each in found)] if found else []
    for old in before:
        lines.append(f"{old.name}: went. It is not compiled any more")
    for new in after:
        flops = sum(row.flops for row in new.rows.values())
        lines.append(f"{new.name}: came. {flops:,} FLOPs, peak {new.peak_bytes:,} bytes")
    if len(lines) > _MOST_LINES:
        hidden = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"... and {hidden:,} more lines"]
    if lines and not is_exact:
        lines.append(
            f"(Written under {expected.environment}; this is {made.environment}. Compared: "
            "programs, arguments, results, layers and the FLOPs of products.)"
        )
    return lines


def _pairs(
    before: list[GoldenProgram], after: list[GoldenProgram]
) -> Iterator[tuple[GoldenProgram, GoldenProgram]]:
    """Yields programs that belong together, and takes them out of both lists."""
    same: list[Callable[[GoldenProgram, GoldenProgram], bool]] = [
        lambda old, new: old.name == new.name and old.arguments == new.arguments,
        lambda old, new: old.name == new.name,
        # of a model with another name
        lambda old, new: _kind(old) == _kind(new) and old.arguments == new.arguments,
        lambda old, new: _kind(old) == _kind(new),
    ]
    for belongs in same:
        for old in list(before):
            new = next((each for each in after if belongs(old, each)), None)
            if new is not None:
                before.remove(old)
                after.remove(new)
                yield old, new


def _kind(program: GoldenProgram) -> str:
    """Returns `train_forward of stage 1` of `train_forward of stage 1 of mine`."""
    words = program.name.split(" ")
    length = 4 if words[1:3] == ["of", "stage"] else 1
    return " ".join(words[:length])


@dataclass(frozen=True, slots=True)
class _Comparison:
    before: GoldenProgram
    after: GoldenProgram
    is_exact: bool

    def lines(self) -> Iterator[str]:
        yield from _counts("policy", self.before.policies, self.after.policies, "layers")
        yield from self._rows()
        yield from _counts("argument", self.before.arguments, self.after.arguments)
        yield from _counts("result", self.before.results, self.after.results)
        if self.is_exact:
            old, new = self.before.peak_bytes, self.after.peak_bytes
            if old != new:
                yield f"peak     {_arrow('bytes', old, new)}"
            yield from self._totals()

    def _rows(self) -> Iterator[str]:
        before, after = self.before.rows, self.after.rows
        names = _same_layers(_layers(before), _layers(after))
        new_keys: dict[RowKey, RowKey] = {}  # by the old ones
        for owner, role, kind in before:
            name = names.get(owner) if role == "layer" else owner
            if name is not None and (name, role, kind) in after:
                new_keys[owner, role, kind] = (name, role, kind)
        for key in after:
            if key not in new_keys.values():
                yield f"came     {_words(key)}: {_numbers(after[key])}"
        for key in before:
            if key not in new_keys:
                yield f"went     {_words(key)}: {_numbers(before[key])}"
        for old, new in new_keys.items():
            if change := self._change(before[old], after[new]):
                yield f"changed  {_words(new)}: {change}"

    def _change(self, old: GoldenRow, new: GoldenRow) -> str:
        if not self.is_exact:
            same = old.products == new.products
            return "" if same else _arrow("FLOPs of products", old.products, new.products)
        numbers = (
            ("FLOPs", old.flops, new.flops),
            ("bytes", old.nbytes, new.nbytes),
            ("operations", old.operations, new.operations),
        )
        return ", ".join(_arrow(what, a, b) for what, a, b in numbers if a != b)

    def _totals(self) -> Iterator[str]:
        for what, of in (("FLOPs", _flops), ("bytes", _nbytes)):
            old, new = (sum(map(of, each.rows.values())) for each in (self.before, self.after))
            if old != new:
                yield f"in all   {_arrow(what, old, new)}"


def _layers(rows: GoldenRows) -> LayerTable:
    """Returns the rows of each layer by pass."""
    layers: LayerTable = {}
    for (owner, role, kind), row in rows.items():
        if role == "layer":
            layers.setdefault(owner, {})[kind] = row
    return layers


def _same_layers(before: LayerTable, after: LayerTable) -> dict[str, str]:
    """Returns the names of layers by those that they had."""
    pairs: dict[str, str] = {}
    for signature in (_class_and_products, _name, _numbers_alone):
        old = [name for name in before if name not in pairs]
        new = [name for name in after if name not in pairs.values()]
        blocks = SequenceMatcher(
            None,
            [signature(name, before[name]) for name in old],
            [signature(name, after[name]) for name in new],
            autojunk=False,
        ).get_matching_blocks()
        for first, second, length in blocks:
            for index in range(length):
                pairs[old[first + index]] = new[second + index]
    return pairs


def _class_and_products(name: str, rows: LayerRows) -> Hashable:
    return _NUMBER.sub("", name), _products(rows)


def _name(name: str, rows: LayerRows) -> Hashable:
    del rows
    return name


def _numbers_alone(name: str, rows: LayerRows) -> Hashable:
    del name
    products = _products(rows)
    if any(each for _, each in products):
        return products
    return tuple((kind, rows[kind]) for kind in sorted(rows))


def _products(rows: LayerRows) -> tuple[tuple[str, int], ...]:
    return tuple((kind, rows[kind].products) for kind in sorted(rows))


def _flops(row: GoldenRow) -> int:
    return row.flops


def _nbytes(row: GoldenRow) -> int:
    return row.nbytes


def _words(key: RowKey) -> str:
    owner, role, kind = key
    return f"{_ROLES.get(role, '')}{owner}{f', {kind}' if kind else ''}"


def _numbers(row: GoldenRow) -> str:
    operations = "1 operation" if row.operations == 1 else f"{row.operations:,} operations"
    return f"{row.flops:,} FLOPs, {row.nbytes:,} bytes, {operations}"


def _arrow(what: str, old: int, new: int) -> str:
    share = f" ({(new - old) / old:+.1%})" if old else ""
    return f"{what} {old:,} -> {new:,}{share}"


def _counts(
    what: str, before: Mapping[str, int], after: Mapping[str, int], of: str = "of them"
) -> Iterator[str]:
    for shape in sorted({*before, *after}):
        old, new = before.get(shape, 0), after.get(shape, 0)
        if old != new:
            yield f"{what:8} {shape}: {old} -> {new} {of}"
