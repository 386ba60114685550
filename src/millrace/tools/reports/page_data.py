"""The contents of a run's page, as JSON and columns."""

import functools
import importlib.metadata
import time
from collections.abc import Sequence

from millrace.base.records.codec import encode
from millrace.base.records.program_memory import ROLES
from millrace.base.records.run import RunRecords
from millrace.base.records.timeline import PASS_STYLES
from millrace.tools.reports.columns import Columns
from millrace.tools.reports.limits import limits
from millrace.tools.reports.program_data import memory_data, operations_data
from millrace.tools.reports.running import outcome_of, run_outcome
from millrace.tools.reports.seen import as_seen, last_seen
from millrace.tools.reports.series_data import (
    epochs_data,
    executions_data,
    feeds_data,
    tensors_data,
)
from millrace.tools.reports.shortened import shortened
from millrace.tools.reports.trace_data import traces_data

COMPILATIONS = 1500
SHOWN = 400  # loops, processes and flights of a run, at most


def title_of(runs: Sequence[RunRecords]) -> str:
    """Returns the name of the page: the directories of its runs."""
    return " and ".join(shortened(_name(run), 80) for run in runs)


@functools.cache
def docs_address() -> str:
    """Returns where the pages of the documentation are, or nothing if the package does not say."""
    try:
        urls = importlib.metadata.metadata("millrace").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:  # it runs from its source
        return ""
    repository = dict(each.split(", ", 1) for each in urls).get("Repository")
    return f"{repository}/blob/main/docs/" if repository else ""


def page_data(runs: Sequence[RunRecords], columns: Columns) -> dict[str, object]:
    """Returns all that a page shows.

    Args:
        runs: one, or two.
        columns: takes the long rows of numbers.
    """
    return {
        "version": 1,
        "written": time.time(),
        "docs": docs_address(),
        "styles": {kind: style._asdict() for kind, style in PASS_STYLES.items()},
        "roles": list(ROLES),
        "runs": [_run(run, columns) for run in runs],
    }


def _run(run: RunRecords, columns: Columns) -> dict[str, object]:
    return {
        "name": shortened(_name(run)),
        "path": shortened(str(run.path)),
        "outcome": run_outcome(run),
        "seen": encode(last_seen(run)),
        "damaged": dict(run.damaged),
        "processes": shortened(encode(run.processes[:SHOWN])),
        "loops": [
            {
                **shortened(encode(each), 1500),
                "seconds": encode(each.seconds),
                "outcome": outcome_of(run, each),
            }
            for each in (as_seen(run, loop) for loop in run.loops[-SHOWN:])
        ],
        "limits": shortened(encode(limits(run)), 1500),
        "loops_in_all": len(run.loops),
        "epochs": epochs_data(run.epochs, columns),
        "executions": executions_data(run.executions, columns),
        "feeds": feeds_data(run.feeds, columns),
        "compilations": shortened(encode(run.compilations[-COMPILATIONS:]), 1500),
        "compilations_in_all": len(run.compilations),
        "memory": memory_data(run, columns),
        "operations": operations_data(run.operations),
        "traces": traces_data(run, columns),
        "tensors": tensors_data(run.tensors, columns),
        "flights": shortened(encode(run.flights[-SHOWN:]), 1500),
    }


def _name(run: RunRecords) -> str:
    return run.path.name or str(run.path)
