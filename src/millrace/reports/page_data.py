"""What a page shows of a run, as JSON and columns."""

import math
from collections.abc import Sequence

from millrace.records.codec import encode
from millrace.records.loops import EpochRecord, LoopRecord
from millrace.records.run import RunRecords
from millrace.reports.columns import Columns
from millrace.reports.shortened import shortened

LOOPS = 400  # of a run, at most, and as many of the processes


def title_of(runs: Sequence[RunRecords]) -> str:
    """Returns the name of the page: the directories of its runs."""
    return " and ".join(run.path.name or str(run.path) for run in runs)


def page_data(runs: Sequence[RunRecords], columns: Columns) -> dict[str, object]:
    """Returns all that a page shows.

    Args:
        runs: one, or two.
        columns: takes the long rows of numbers.
    """
    return {"version": 1, "runs": [_run(run, columns) for run in runs]}


def _run(run: RunRecords, columns: Columns) -> dict[str, object]:
    return {
        "name": shortened(run.path.name or str(run.path)),
        "path": shortened(str(run.path)),
        "damaged": dict(run.damaged),
        "processes": [shortened(encode(each)) for each in run.processes[:LOOPS]],
        "loops": [shortened(_loop(each)) for each in run.loops[-LOOPS:]],
        "loops_in_all": len(run.loops),
        "epochs": _epochs(run.epochs, columns),
        "compilations_in_all": len(run.compilations),
    }


def _loop(loop: LoopRecord) -> object:
    return {**_fields(loop), "seconds": encode(loop.seconds)}


def _fields(record: object) -> dict[str, object]:
    fields = encode(record)
    return fields if isinstance(fields, dict) else {}


def _epochs(epochs: Sequence[EpochRecord], columns: Columns) -> list[object]:
    """Returns the logs of each loop, by name, epoch by epoch."""
    loops: dict[tuple[int, int], list[EpochRecord]] = {}
    for each in epochs:
        loops.setdefault((each.process, each.loop), []).append(each)
    return [
        {
            "process": process,
            "loop": loop,
            "epochs": columns.floats(each.epoch for each in of_loop),
            "logs": {
                shortened(name): columns.floats(each.logs.get(name, math.nan) for each in of_loop)
                for name in dict.fromkeys(name for each in of_loop for name in each.logs)
            },
        }
        for (process, loop), of_loop in loops.items()
    ]
