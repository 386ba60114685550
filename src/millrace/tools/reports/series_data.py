"""Series of values over a run, as a page shows them: epochs, executions, feeds, tensors."""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

import numpy as np

from millrace.base.records.codec import encode
from millrace.base.records.loops import EpochRecord, ExecutionSample, FeedSample
from millrace.base.records.tensors import COUNTS, STATISTICS, Tensor, TensorSeries
from millrace.tools.reports.columns import Columns
from millrace.tools.reports.shortened import fields_of, shortened
from millrace.tools.reports.thinning import kept_points

SAMPLES = 2000  # of a series
_ROWS_IN_ALL = 16_000  # of statistics, of all tensors
_SERIES = 400  # of each kind

Sample = TypeVar("Sample", ExecutionSample, FeedSample)


def epochs_data(epochs: Sequence[EpochRecord], columns: Columns) -> list[dict[str, object]]:
    """Returns the logs of each loop by name, epoch by epoch."""
    loops: dict[tuple[int, int], list[EpochRecord]] = {}
    for each in epochs:
        loops.setdefault((each.process, each.loop), []).append(each)
    return [_logs(key, of_loop, columns) for key, of_loop in list(loops.items())[-_SERIES:]]


def _logs(
    key: tuple[int, int], epochs: Sequence[EpochRecord], columns: Columns
) -> dict[str, object]:
    names = dict.fromkeys(name for each in epochs for name in each.logs)
    steps = -(-len(epochs) // SAMPLES)
    kept = [*epochs[:-1:steps], epochs[-1]] if steps > 1 else epochs
    return {
        "process": key[0],
        "loop": key[1],
        "epochs": columns.floats(each.epoch for each in kept),
        "logs": [
            [shortened(name), columns.floats(each.logs.get(name, math.nan) for each in kept)]
            for name in names
        ],
    }


def executions_data(
    samples: Sequence[ExecutionSample], columns: Columns
) -> list[dict[str, object]]:
    """Returns the executions of each loop over time."""
    fields = (
        "seconds", "executions", "steps", "compile_seconds", "wait_seconds", "dispatch_seconds"
    )  # fmt: skip
    return _series(samples, fields, "began", columns)


def feeds_data(samples: Sequence[FeedSample], columns: Columns) -> list[dict[str, object]]:
    """Returns the state of each feed over time; of several samples the least depth."""
    fields = ("blocks", "steps", "bytes", "prepare_seconds", "wait_seconds")
    return _series(samples, fields, "time", columns, ("depth", "limit"))


def _series(
    samples: Sequence[Sample],
    added: Iterable[str],
    time: str,
    columns: Columns,
    least: Iterable[str] = (),
) -> list[dict[str, object]]:
    parts: dict[tuple[int, int, str], list[Sample]] = {}
    for each in samples:
        parts.setdefault((each.process, each.loop, each.mode), []).append(each)
    series: list[dict[str, object]] = []
    for (process, loop, mode), part in list(parts.items())[-_SERIES:]:
        part.sort(key=attrgetter(time))
        # Neighbours are put together, not left out: their sums stay those of the run.
        edges = np.unique(np.linspace(0, len(part), SAMPLES + 1).astype(np.int64))[:-1]
        sums = {name: _reduced(np.add, part, name, edges) for name in added}
        sums |= {name: _reduced(np.minimum, part, name, edges) for name in least}
        sums["time"] = _reduced(np.minimum, part, time, edges)  # they are in order
        series.append(
            {
                "process": process,
                "loop": loop,
                "mode": mode,
                "epoch": columns.floats(float(part[k].epoch) for k in edges),
                **{name: columns.floats(values) for name, values in sums.items()},
            }
        )
    return series


def _reduced(
    function: np.ufunc, samples: Sequence[object], name: str, edges: np.ndarray
) -> np.ndarray:
    values = np.fromiter((float(getattr(each, name)) for each in samples), np.float64)
    return function.reduceat(values, edges)


def tensors_data(series: Sequence[TensorSeries], columns: Columns) -> dict[str, object]:
    """Returns the statistics of each tensor, step by step."""
    parts: dict[tuple[str, Tensor], list[TensorSeries]] = {}
    for each in series:
        parts.setdefault((each.model, each.tensor), []).append(each)
    most = min(SAMPLES, max(_ROWS_IN_ALL // max(len(parts), 1), 12))
    shown = list(parts.items())[: 2 * _SERIES]
    tensors = [_tensor(model, tensor, part, most, columns) for (model, tensor), part in shown]
    return {"statistics": list(STATISTICS), "tensors": tensors, "in_all": len(parts)}


def _tensor(
    model: str, tensor: Tensor, parts: Sequence[TensorSeries], most: int, columns: Columns
) -> dict[str, object]:
    steps = np.array([step for part in parts for step in part.steps], np.float64)
    rows = [_padded(row) for part in parts for row in part.values][: len(steps)]
    values = np.array(rows, np.float64).reshape(len(rows), len(STATISTICS))
    steps = steps[: len(rows)]
    plain = np.where(np.isfinite(values), values, 0.0)
    sums = zip(STATISTICS[COUNTS], plain[:, COUNTS].sum(axis=0), strict=True)
    counts = {name: encode(float(count)) for name, count in sums}
    sizes = np.abs(values[:, STATISTICS.index("norm")])
    # Where it is not finite it is of most interest.
    kept = kept_points(np.where(np.isfinite(sizes), sizes, np.inf), most)
    return {
        "model": shortened(model),
        **fields_of(tensor, "kind", "name", "stage"),
        **counts,
        "steps": columns.floats(steps[kept]),
        "values": [columns.floats(values[kept, k]) for k in range(len(STATISTICS))],
    }


def _padded(row: Sequence[float]) -> list[float]:
    return [*row, *[math.nan] * len(STATISTICS)][: len(STATISTICS)]
