"""The table of `print_pipeline_stage_assignment_summary`, as lines.

Model: "sequential"
____________________________________________________________
Layer (type)                 Pipeline Stage
============================================================
dense (Dense)                0
____________________________________________________________
dense_1 (Dense)              1
============================================================
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import keras

from millrace.run.pipelines.assignment.layer_calls import LayerCall

_WIDTH, _SEQUENTIAL_WIDTH = 89, 60
AT_FIT = "at fit"  # when what is unknown will be known


@dataclass(frozen=True, slots=True)
class StageCost:
    """Parameters and FLOPs of one stage."""

    parameters: int
    flops: float | None = None  # of one batch, forward and backward; None: unknown before `fit`
    share: float = 0.0  # of the FLOPs of all stages, 0 to 1


def summary_lines(
    model: keras.Model,
    calls: Sequence[LayerCall],
    stages: Sequence[int | None] | None,
    line_length: int | None = None,
    costs: Sequence[StageCost] | None = None,
    is_open: bool = False,
) -> list[str]:
    """Returns a table of the stages of all calls and, with `costs`, a table of their costs.

    Args:
        model: the model.
        calls: its calls.
        stages: of each leaf, None for a leaf without a stage; None if no leaf has one.
        line_length: in characters; None: 60 for a Sequential and 89 for other models.
        costs: of each stage, by number; None: no second table.
        is_open: whether the first batch of `fit` decides the stages.
    """
    is_sequential = isinstance(model, keras.Sequential)
    length = line_length or (_SEQUENTIAL_WIDTH if is_sequential else _WIDTH)
    if is_sequential:
        ends, header = (int(length * 0.5), length), ("Layer (type)", "Pipeline Stage")
    else:
        ends = (int(length * 0.4), int(length * 0.8), length)
        header = ("Layer (type) (node index)", "Input Layers", "Pipeline Stage")
    shown = itertools.repeat(AT_FIT) if is_open else map(str, stages or ())
    blocks = list(_blocks(calls, shown, ends))
    lines = [f'Model: "{model.name}"', *_frame(_row(header, ends), blocks, length)]
    if costs:
        lines += _cost_lines(costs, length)
    return lines


def _blocks(
    calls: Iterable[LayerCall], stages: Iterator[str], ends: Sequence[int]
) -> Iterator[list[str]]:
    """Yields the lines of each call: one for each input, or a nested model's title and rows."""
    for call in calls:
        if call.inner:
            inner = _separated(list(_blocks(call.inner, stages, ends)), ends[-1])
            yield [f'Nested Model: "{call.operation.name}"', "-" * ends[-1], *inner]
            continue
        name = f"{call.operation.name} ({type(call.operation).__name__})"
        stage = next(stages, "None")
        if len(ends) == 2:
            yield [_row((name, stage), ends)]
            continue
        first, *more = [layer.name for layer in call.inbound] or [""]
        yield [
            _row((f"{name} ({call.node_index})", first, stage), ends),
            *(_row(("", other, ""), ends) for other in more),
        ]


def _cost_lines(costs: Sequence[StageCost], length: int) -> list[str]:
    ends = (int(length * 0.25), int(length * 0.5), int(length * 0.75), length)
    header = _row(("Pipeline Stage", "Parameters", "FLOPs", "Share"), ends)
    rows: list[list[str]] = []
    for stage, cost in enumerate(costs):
        counted = (AT_FIT, AT_FIT)
        if cost.flops is not None:
            counted = (f"{cost.flops:.3g}", f"{cost.share:.1%}")
        rows.append([_row((str(stage), f"{cost.parameters:,}", *counted), ends)])
    return _frame(header, rows, length)


def _frame(header: str, blocks: list[list[str]], length: int) -> list[str]:
    return ["_" * length, header, "=" * length, *_separated(blocks, length), "=" * length]


def _separated(blocks: list[list[str]], length: int) -> list[str]:
    lines = [line for block in blocks for line in (*block, "_" * length)]
    return lines[:-1]


def _row(cells: Sequence[str], ends: Sequence[int]) -> str:
    """Joins cells, each cut or padded to the end of its column, with a space between two."""
    line = ""
    for cell, end in zip(cells, ends, strict=True):
        if line:
            line = line[:-1] + " "
        line = (line + cell)[:end].ljust(end)
    return line
