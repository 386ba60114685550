"""The traces of a run as a file for Perfetto (ui.perfetto.dev) and chrome://tracing.

    process   fit of 'mlp', measured          a process for each model and mode
      thread  group 0   |0F0|0F1|   |0B0|     a thread for each row of its traces
      thread  host      |dispatch |wait  |
    process   fit of 'mlp', simulated
      thread  group 0   |0F0|0F1|  |0B0|      each twin begins where its update began

The format is that of Chrome's Trace Event Format: complete events, times in microseconds.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from millrace.base.records.run import RunRecords
from millrace.base.records.timeline import PASS_STYLES, Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.tools.reports.twin import simulated_twin

TraceEvent = dict[str, Any]
_LOOPS = {"train": "fit", "test": "evaluate", "predict": "predict"}
_LAST = ("infeed", "host", "outfeed", "compile")  # rows below the groups, in order


def perfetto(run: RunRecords) -> dict[str, Any]:
    """Returns the traces of a run, measured and simulated, in the Trace Event Format.

    Times count from the begin of the first trace. Every task has its stage, pass, micro-batch,
    update and epoch as arguments, every row and every model its name.
    """
    first = min((trace.began for trace in run.traces), default=0.0)
    names = _Names()
    events: list[TraceEvent] = []
    for trace in run.traces:
        events += _events(trace, (trace.began - first) * 1e6, names)
    return {
        "traceEvents": [*names.events(), *events],
        "displayTimeUnit": "ms",
        "otherData": {"run": str(run.path), "written by": "millrace"},
    }


def write_perfetto(run: RunRecords, path: str | pathlib.Path) -> None:
    """Writes the traces of a run to a file.

    Args:
        run: the records.
        path: of the file, such as "trace.json"; an existing file is replaced.

    Raises:
        OSError: if it cannot be written.
    """
    text = json.dumps(perfetto(run), separators=(",", ":"), allow_nan=False)
    pathlib.Path(path).write_text(text, encoding="utf-8")


class _Names:
    """The numbers of processes and threads, by their names, in the order of their appearance."""

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        self._threads: dict[tuple[int, str], int] = {}

    def process(self, name: str) -> int:
        """Returns the number of a process."""
        return self._processes.setdefault(name, len(self._processes) + 1)

    def thread(self, process: int, row: str) -> int:
        """Returns the number of a thread, unique in the file."""
        return self._threads.setdefault((process, row), len(self._threads) + 1)

    def events(self) -> Iterator[TraceEvent]:
        """Yields the events that name and sort processes and threads."""
        for name, number in self._processes.items():
            yield _meta("process_name", number, 0, name=name)
            yield _meta("process_sort_index", number, 0, sort_index=number)
        rows = sorted(self._threads, key=lambda each: (each[0], _rank(each[1])))
        for index, (process, row) in enumerate(rows):
            thread = self._threads[process, row]
            yield _meta("thread_name", process, thread, name=row)
            yield _meta("thread_sort_index", process, thread, sort_index=index)


def _rank(row: str) -> tuple[int, int, str]:
    """Returns the place of a row: groups by number, then the others."""
    word, _, number = row.partition(" ")
    if word == "group" and number.isdigit():
        return 0, int(number), ""
    return 1, _LAST.index(word) if word in _LAST else len(_LAST), row


def _meta(kind: str, process: int, thread: int, **arguments: object) -> TraceEvent:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": arguments}


def _events(trace: ExecutionTrace, offset: float, names: _Names) -> Iterator[TraceEvent]:
    loop = f"{_LOOPS.get(trace.mode, trace.mode)} of {trace.model!r}"
    place = {"update": trace.update, "epoch": trace.epoch, "loop": trace.loop}

    def event(of: str, row: str, kind: str, span: Span | ActivitySpan, **more: Any) -> TraceEvent:
        process = names.process(f"{loop}, {of}")
        return {
            "name": span.name if isinstance(span, ActivitySpan) else str(span),
            "cat": kind,
            "ph": "X",
            "ts": round(offset + span.start * 1e6, 3),
            "dur": round(max((span.end - span.start) * 1e6, 0.0), 3),
            "pid": process,
            "tid": names.thread(process, row),
            "args": {**more, **place},
        }

    def task(of: str, span: Span) -> TraceEvent:
        kind = PASS_STYLES[span.kind].name
        more = {"stage": span.stage, "pass": kind, "micro-batch": span.micro_batch}
        return event(of, f"group {span.group}", kind, span, **more)

    yield from (task("measured", span) for span in trace.spans)
    for each in trace.activities:
        yield event("measured", each.row, each.row.partition(" ")[0], each)
    if (twin := simulated_twin(trace)) is not None:
        yield from (task("simulated", span) for span in twin.spans)
