"""The time of a traced update, divided among what its device groups did.

group 0 |F0 F1 ..  ..B0---  update|      compute  in tasks and updates
group 1 |   F0 ->B0---F1   ......|       transfer idle while a value is on its way to the group
bubble   idle for any other reason
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.base.records.timeline import Timeline
from millrace.base.records.trace import ExecutionTrace
from millrace.run.schedules.task import Pass
from millrace.tools.reports.bubble import idle_slots

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class TraceShares:
    """Shares of the time of all device groups in one update, which add up to 1."""

    seconds: float  # of one update; of the calls of compiled code, for a model in one piece
    bubble: float
    transfer: float
    steps: int  # in this time: of one replica of a pipeline, of all replicas of another model
    is_pipelined: bool = True

    @property
    def compute(self) -> float:
        """Share in tasks and updates."""
        return max(1.0 - self.bubble - self.transfer, 0.0)


def trace_shares(trace: ExecutionTrace) -> TraceShares | None:
    """Divides the time of an update; None for a trace that has nothing of device groups."""
    if trace.num_groups < 1:
        return None
    if not trace.spans:
        return _of_calls(trace)
    busy = [_joined(_busy(trace, group)) for group in range(trace.num_groups)]
    end = max((intervals[-1][1] for intervals in busy if intervals), default=0.0)
    if end <= 0:
        return None
    transfers = _transfers(trace)
    idle = transfer = 0.0
    for group, intervals in enumerate(busy):
        slots = _gaps(intervals, end)
        idle += _length(slots)
        transfer += _common(slots, transfers[group])
    total = end * trace.num_groups
    forwards = sum(1 for span in trace.spans if span.kind == Pass.FORWARD and span.stage == 0)
    updates = max(trace.updates, 1)
    steps = max(forwards // updates, 1)
    return TraceShares(end / updates, (idle - transfer) / total, transfer / total, steps)


def _transfers(trace: ExecutionTrace) -> list[list[Interval]]:
    """Returns for each group the times in which a value was on its way to it, by start."""
    spans = (each for each in trace.spans if 0 <= each.group < trace.num_groups)
    found: list[list[Interval]] = [[] for _ in range(trace.num_groups)]
    for slot in idle_slots(Timeline(tuple(spans), trace.num_groups)):
        if slot.is_transfer:
            found[slot.group].append((slot.start, slot.end))
    return found


def _of_calls(trace: ExecutionTrace) -> TraceShares | None:
    """Returns the time of a model in one piece in calls of compiled code."""
    calls = [
        (each, int(match[1]))
        for each in trace.activities
        if each.row == "group 0" and (match := re.fullmatch(r"(\d+) steps?", each.name))
    ]
    steps = sum(number for _, number in calls)
    if not steps:
        return None
    seconds = _length(_joined((each.start, each.end) for each, _ in calls))
    return TraceShares(seconds, 0.0, 0.0, steps, is_pipelined=False)


def _busy(trace: ExecutionTrace, group: int) -> Iterable[Interval]:
    yield from ((span.start, span.end) for span in trace.spans if span.group == group)
    row = f"group {group}"
    yield from ((each.start, each.end) for each in trace.activities if each.row == row)


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the intervals by start, with those that meet as one."""
    joined: list[Interval] = []
    for start, end in sorted(each for each in intervals if each[1] > each[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _gaps(busy: Sequence[Interval], end: float) -> list[Interval]:
    edges = [0.0, *(edge for interval in busy for edge in interval), end]
    return _joined(zip(edges[::2], edges[1::2], strict=True))


def _common(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Returns the length of what both have, of intervals that do not meet."""
    either = _length(_joined([*first, *second]))
    return max(_length(first) + _length(second) - either, 0.0)


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)
