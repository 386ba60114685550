"""The time of a traced update, divided among what its device groups did.

group 0 |F0 F1 ..  ..B0---  update|      compute  in tasks and updates
group 1 |   F0 ->B0---F1   ......|       transfer idle while a value is on its way to the group
bubble   idle for any other reason
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from millrace.base.records.timeline import Span, Timeline
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.run.schedules.task import Pass
from millrace.tools.reports.bubble import idle_slots


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
    group = {f"group {number}": number for number in range(trace.num_groups)}
    tasks = [span for span in trace.spans if 0 <= span.group < trace.num_groups]
    others = [_as_task(each, group[each.row]) for each in trace.activities if each.row in group]
    end, idle, transfer = _times([*tasks, *others], trace.num_groups)
    if end <= 0:
        return None
    total = end * trace.num_groups
    forwards = sum(1 for span in trace.spans if span.kind == Pass.FORWARD and span.stage == 0)
    updates = max(trace.updates, 1)
    steps = max(forwards // updates, 1)
    return TraceShares(end / updates, (idle - transfer) / total, transfer / total, steps)


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
    end, idle, _ = _times([_as_task(each, 0) for each, _ in calls], 1)
    return TraceShares(end - idle, 0.0, 0.0, steps, is_pipelined=False)


def _as_task(activity: ActivitySpan, group: int) -> Span:
    """Returns what a device group did besides its tasks, such as the update."""
    return Span(-1, "", -1, group, activity.start, activity.end)


def _times(spans: Iterable[Span], num_groups: int) -> tuple[float, float, float]:
    """Returns the end of all tasks, the idle time before it, and what of it transfers took."""
    timeline = Timeline(tuple(each for each in spans if each.duration > 0), num_groups)
    slots = idle_slots(timeline)
    transfer = sum(each.duration for each in slots if each.is_transfer)
    return timeline.end, sum(each.duration for each in slots), transfer
