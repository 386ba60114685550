"""What programs compute, as a text to keep beside a test.

    environment  cpu, jax 0.10.2, keras 3.15.1

    program  train_run of mine
      argument  float32[8,16]                    2
      result    f32[8,16]                        2
      policy    float32                          3 layers
      owner     role   pass      products  FLOPs  bytes  operations
      first     layer  forward      1,024  1,280  1,472           2
      peak      12,345 bytes

Names that Keras has numbered are numbered anew, by position: `dense_7` is `dense` if it is the
first. Neither names nor order of instructions are in the text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import keras

from millrace._compat.jax_executables import sizes_of
from millrace._compat.keras_layers import all_layers, layers_inside
from millrace.compiling.executable import compiled_of
from millrace.compiling.log import NewExecutable
from millrace.errors import DataError
from millrace.operations.groups import count_operations, program_of

TITLE = "# What a test compiles. `pytest --update-golden` writes this file anew."
_COLUMNS = ("owner", "role", "pass", "products", "FLOPs", "bytes", "operations")
RowKey = tuple[str, str, str]  # owner, role, pass


@dataclass(frozen=True, slots=True)
class GoldenRow:
    """The operations of one owner in one pass."""

    products: int  # FLOPs of dots and convolutions
    flops: int
    nbytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class GoldenProgram:
    """The description of one executable."""

    name: str
    arguments: dict[str, int] = field(default_factory=dict[str, int])  # counts, by shape
    results: dict[str, int] = field(default_factory=dict[str, int])
    policies: dict[str, int] = field(default_factory=dict[str, int])  # layers, by dtype policy
    rows: dict[RowKey, GoldenRow] = field(default_factory=dict[RowKey, GoldenRow])
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GoldenText:
    """The programs of a test, and the versions that compiled them."""

    environment: str
    programs: tuple[GoldenProgram, ...]


def describe(executables: Iterable[NewExecutable]) -> GoldenText:
    """Returns the description of executables; of equal ones once, in the order of their names."""
    programs: list[GoldenProgram] = []
    for new in executables:
        program = _program(new)
        if program is not None and program not in programs:
            programs.append(program)
    return GoldenText(_environment(), tuple(sorted(programs, key=_order)))


def _order(program: GoldenProgram) -> tuple[str, list[str]]:
    return program.name, sorted(program.arguments)


def _environment() -> str:
    return f"{jax.default_backend()}, jax {jax.__version__}, keras {keras.__version__}"


def _program(new: NewExecutable) -> GoldenProgram | None:
    program = new.record.program
    module = program_of(new.executable)
    if module is None:
        return None
    count = count_operations(module, new.executable, new.model, "_backward" in program)
    names = stable_names(new.model)
    compiled = compiled_of(new.executable)
    arguments = Counter(
        f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for leaf in jax.tree.leaves(compiled.args_info)
    )
    rows = {
        (_renamed(group.owner, names), group.role, group.kind): GoldenRow(
            products=round(count.products.get((group.owner, group.kind), 0)),
            flops=round(group.flops),
            nbytes=round(group.bytes),
            operations=group.operations,
        )
        for group in count.groups
    }
    model = names.get(new.record.model, new.record.model)
    return GoldenProgram(
        name=_one_line(f"{program} of {model}" if model else program),
        arguments=dict(sorted(arguments.items())),
        results=dict(sorted(Counter(count.results).items())),
        policies=_policies(new.model),
        rows=rows,
        peak_bytes=sizes_of(compiled).peak_bytes,
    )


def _policies(model: keras.Model | None) -> dict[str, int]:
    every = [] if model is None else all_layers(model)
    inner = [each for each in every if each is not model and each.weights]
    policies = Counter(_one_line(each.dtype_policy.name) for each in inner)
    return dict(sorted(policies.items()))


def stable_names(model: keras.Model | None) -> dict[str, str]:
    """Returns the names of a model and its layers as the first model of a process has them."""
    if model is None:
        return {}
    used: Counter[str] = Counter()
    names: dict[str, str] = {}
    for layer in (model, *_in_order(model)):
        base = _snake_case(type(layer).__name__)
        if layer.name in names or not re.fullmatch(rf"{re.escape(base)}(_\d+)?", layer.name):
            continue
        names[layer.name] = f"{base}_{used[base]}" if used[base] else base
        used[base] += 1
    return names


def _in_order(layer: Any) -> Iterator[Any]:
    for inner in layers_inside(layer):
        yield inner
        yield from _in_order(inner)


def _snake_case(name: str) -> str:
    """Returns a class's name as Keras makes a layer's name of it."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _renamed(owner: str, names: dict[str, str]) -> str:
    return _one_line("/".join(names.get(name, name) for name in owner.split("/")))


def _one_line(name: str) -> str:
    return re.sub(r"\s+", " ", name).strip() or "(no name)"


def write(text: GoldenText) -> str:
    """Returns the description as text."""
    lines = [TITLE, "", f"environment  {text.environment}"]
    for program in text.programs:
        lines += ["", f"program  {program.name}"]
        lines += [f"  argument  {shape:30}  {count}" for shape, count in program.arguments.items()]
        lines += [f"  result    {shape:30}  {count}" for shape, count in program.results.items()]
        lines += [
            f"  policy    {name:30}  {count} layers" for name, count in program.policies.items()
        ]
        lines += _table(program)
        lines += [f"  peak  {program.peak_bytes:,} bytes"]
    return "\n".join(lines) + "\n"


def _table(program: GoldenProgram) -> list[str]:
    table: list[Sequence[str]] = [_COLUMNS]
    for (owner, role, kind), row in program.rows.items():
        numbers = (row.products, row.flops, row.nbytes, row.operations)
        table.append((owner, role, kind or "-", *(f"{number:,}" for number in numbers)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if number < 3 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    ]


def read(text: str) -> GoldenText:
    """Reads what `write` has written.

    Raises:
        DataError: if it is no such text; a merge may have left marks of a conflict in it.
    """
    environment, programs = "", list[GoldenProgram]()
    for number, line in enumerate(text.splitlines(), 1):
        cells = re.split(r"\s{2,}", line.strip())
        try:
            if not line.strip() or line.startswith("#") or tuple(cells) == _COLUMNS:
                continue
            if cells[0] == "environment" and not line.startswith(" "):
                environment = cells[1]
            elif cells[0] == "program" and not line.startswith(" "):
                programs.append(GoldenProgram(cells[1]))
            else:
                programs[-1] = _with_line(programs[-1], cells)
        except (IndexError, ValueError) as error:
            raise DataError(
                f"Line {number} is none that pytest --update-golden writes: {line!r}. Run it to "
                "write the file anew."
            ) from error
    return GoldenText(environment, tuple(programs))


def _with_line(program: GoldenProgram, cells: list[str]) -> GoldenProgram:
    first, *others = cells
    counts = {
        "argument": program.arguments,
        "result": program.results,
        "policy": program.policies,
    }
    if len(cells) == 3 and first in counts:
        counts[first][others[0]] = int(others[1].removesuffix(" layers"))
    elif len(cells) == 2 and first == "peak":
        return replace(program, peak_bytes=_number(others[0].removesuffix(" bytes")))
    else:
        owner, role, kind, *numbers = cells
        products, flops, nbytes, operations = map(_number, numbers)
        row = GoldenRow(products, flops, nbytes, operations)
        program.rows[owner, role, "" if kind == "-" else kind] = row
    return program


def _number(text: str) -> int:
    return int(text.replace(",", ""))
