"""Checks that a record which was read can be shown: its types are right, its numbers may not be.

A file may be damaged, or come from anybody. What is counted, divided by or used as an index when a
record is shown is checked here, once, so that those who show it need no checks.
"""

import collections

from millrace.base.records.memory_report import MemoryReport
from millrace.base.records.program_memory import ProgramMemory
from millrace.base.records.timeline import PASS_STYLES
from millrace.base.records.trace import ExecutionTrace

_LATEST = 1e11  # seconds since 1970: the year 5138
_MOMENTS = ("began", "ended", "time")  # fields of records
_MOST = 1024  # stages and device groups of a pipeline; lists are made of so many
_MOST_ALIKE = 1024  # tasks of one kind and micro-batch: one for each stage


def check_record(record: object) -> None:
    """Checks the numbers of a record.

    Raises:
        ValueError: if it cannot be shown.
    """
    for name in _MOMENTS:
        moment = getattr(record, name, 0.0)
        require(abs(moment) <= _LATEST, f"{name} is {moment}, which is no time")
    if isinstance(record, ExecutionTrace):
        _check_trace(record)
    elif isinstance(record, ProgramMemory):
        lengths = {len(area.curve) for area in record.areas if area.curve}
        require(len(lengths) < 2, "its curves have different lengths")
        require(0 <= record.point < min(lengths, default=1), "its peak is at none of its points")
        require(all(area.curve for area in record.areas), "it has a curve without points")
    elif isinstance(record, MemoryReport):
        require(all(device.devices for device in record.devices), "a device has no name")


def _check_trace(trace: ExecutionTrace) -> None:
    groups, alike = range(trace.num_groups), collections.Counter[tuple[str, int]]()
    require(0 <= trace.num_groups <= _MOST, f"it has {trace.num_groups} device groups")
    for span in trace.spans:
        require(span.group in groups, f"it has a task on device group {span.group}")
        require(0 <= span.stage < _MOST, f"it has a task of stage {span.stage}")
        require(span.kind in PASS_STYLES, "it has a task of an unknown pass")
        alike[span.kind, span.micro_batch] += 1
    require(max(alike.values(), default=0) <= _MOST_ALIKE, "tasks are in it too many times")
    for each in (*trace.spans, *trace.activities):
        is_moment = abs(each.start) <= _LATEST and abs(each.end) <= _LATEST
        require(is_moment, f"{each} begins or ends at no time")


def require(holds: bool, otherwise: str) -> None:
    """Raises a ValueError where a condition does not hold."""
    if not holds:
        raise ValueError(otherwise)
