"""Traces of one update by several processes, put together."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace

TimedSpan = TypeVar("TimedSpan", Span, ActivitySpan)


def update_traces(traces: Iterable[ExecutionTrace]) -> tuple[ExecutionTrace, ...]:
    """Returns one trace for each update, in the order in which they began.

    Processes write the spans of their own devices, in seconds since a moment of their own. The
    earliest of these moments becomes that of all.
    """
    parts: dict[tuple[object, ...], list[ExecutionTrace]] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    for trace in traces:
        update = trace.model, trace.mode, trace.loop, trace.update
        seen[trace.process, *update] += 1  # more than once if the run was started again
        parts.setdefault((*update, seen[trace.process, *update]), []).append(trace)
    return tuple(_in_order({update: _together(each) for update, each in parts.items()}))


def _in_order(traces: dict[tuple[object, ...], ExecutionTrace]) -> list[ExecutionTrace]:
    """Returns traces by their begin, and those of one loop by their update.

    On a busy core a begin can be seen later than those of updates that came after it.
    """
    first: dict[tuple[object, ...], float] = {}  # begin of this update of a loop or a later one
    keys: list[tuple[float, int, ExecutionTrace]] = []
    by_update = sorted(traces.items(), key=lambda each: -each[1].update)
    for (model, mode, loop, _, run), trace in by_update:
        which = model, mode, loop, run
        first[which] = min(trace.began, first.get(which, trace.began))
        keys.append((first[which], trace.update, trace))
    return [trace for *_, trace in sorted(keys, key=lambda each: each[:2])]


def _together(parts: list[ExecutionTrace]) -> ExecutionTrace:
    if len(parts) == 1:
        return replace(parts[0], activities=_from_begin(parts[0].activities))
    began = min(part.began for part in parts)
    several = len({part.process for part in parts}) > 1
    spans = [_later(span, part.began - began) for part in parts for span in part.spans]
    activities = [
        _later(replace(each, row=_row(each.row, part.process, several)), part.began - began)
        for part in parts
        for each in part.activities
    ]
    return replace(
        parts[0],
        began=began,
        process=0,
        spans=tuple(sorted(spans, key=lambda span: (span.start, span.group))),
        activities=_from_begin(activities),
    )


def _from_begin(activities: Iterable[ActivitySpan]) -> tuple[ActivitySpan, ...]:
    """Returns activities in order, without the parts of them before the first task."""
    kept = [replace(each, start=max(each.start, 0.0)) for each in activities if each.end > 0]
    return tuple(sorted(kept, key=lambda each: each.start))


def _row(row: str, process: int, several: bool) -> str:
    return f"{row} of process {process}" if several and not row.startswith("group") else row


def _later(span: TimedSpan, seconds: float) -> TimedSpan:
    return replace(span, start=span.start + seconds, end=span.end + seconds)
