"""The bubble of a timeline, slot by slot: when a device group had nothing to run, and why.

group 0 |F0 F1 ////// B0---//// B1---       / waits for backward of stage 1 on micro-batch 0
group 1 |   F0 B0--- F1 B1---               before F0 start-up, after B1 end
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from millrace.base.records.timeline import Span, Timeline

_NAMES = {"F": "forward", "B": "backward", "I": "backward for inputs", "W": "backward for weights"}
_TRANSFER = "waits for the transfer of"
_OR_HOST = ", or for the host"
# The tasks whose results others take, by whether they are forwards, and micro-batch. What a
# backward takes may come from either form of the next stage's backward.
Senders = Mapping[tuple[bool, int], Sequence[Span]]


@dataclass(frozen=True, slots=True)
class IdleSlot:
    """A time in which a device group ran no task."""

    group: int
    start: float  # in the unit of the timeline
    end: float
    reason: str  # "start-up", "end", "waits for forward of stage 1 on micro-batch 3", ...

    @property
    def duration(self) -> float:
        """Time from start to end."""
        return self.end - self.start

    @property
    def is_transfer(self) -> bool:
        """Whether the value that the group waited for was on its way, and nothing else was late."""
        return self.reason.startswith(_TRANSFER) and not self.reason.endswith(_OR_HOST)


def idle_slots(timeline: Timeline) -> tuple[IdleSlot, ...]:
    """Returns the idle time of all device groups, with the reason for each part of it.

    Args:
        timeline: of one update, simulated or measured.

    Returns:
        By group and start. The slots of a group have the sum `timeline.idle` of that group. The
        reasons are:

        - "start-up": before the first task of the group;
        - "waits for PASS of stage S on micro-batch M": a task of another group whose result the
          next task takes has not ended;
        - "waits for the transfer of ...": it has ended, and the next task has not begun. In a
          measured timeline that is the transfer and the wake-up of the group;
        - "waits for the host": everything that the next task takes was there before;
        - "end": after the last task of the group;
        - "no task": a group without tasks.
    """
    by_group: list[list[Span]] = [[] for _ in range(timeline.num_groups)]
    for span in timeline.spans:
        by_group[span.group].append(span)
    senders: dict[tuple[bool, int], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.kind != "W":
            senders[span.kind == "F", span.micro_batch].append(span)
    end = timeline.end
    slots: list[IdleSlot] = []
    for group, spans in enumerate(by_group):
        spans.sort(key=lambda span: (span.start, span.end))
        slots += _of_group(group, spans, end, senders)
    return tuple(slots)


def _of_group(
    group: int,
    spans: Sequence[Span],
    end: float,
    senders: Senders,
) -> Iterator[IdleSlot]:
    if not spans:
        if end:
            yield IdleSlot(group, 0.0, end, "no task")
        return
    free = 0.0
    for number, span in enumerate(spans):
        if span.start > free:
            if number:
                yield from _before(span, free, senders)
            else:
                yield IdleSlot(group, 0.0, span.start, "start-up")
        free = max(free, span.end)
    if free < end:
        yield IdleSlot(group, free, end, "end")


def _before(span: Span, free: float, senders: Senders) -> Iterator[IdleSlot]:
    """Yields the parts of the gap between `free` and the start of a task."""
    group = span.group
    sender = _sender(span, senders)
    if sender is None or sender.end <= free:
        reason = "waits for the host"
        if sender is not None:
            reason = f"{_TRANSFER} {_words(sender)}{_OR_HOST}"
        yield IdleSlot(group, free, span.start, reason)
        return
    arrived = min(sender.end, span.start)
    yield IdleSlot(group, free, arrived, f"waits for {_words(sender)}")
    if arrived < span.start:
        yield IdleSlot(group, arrived, span.start, f"{_TRANSFER} {_words(sender)}")


def _sender(span: Span, senders: Senders) -> Span | None:
    """Returns the task of another group whose result a task takes, the last one to end."""
    is_forward = span.kind == "F"
    if span.kind == "W":
        return None  # which takes only what its own group has left
    found = None
    for each in senders[is_forward, span.micro_batch]:
        if each.stage == span.stage or (each.stage < span.stage) is not is_forward:
            continue
        if each.group != span.group and each.end <= span.end:
            found = each if found is None or each.end > found.end else found
    return found


def _words(span: Span) -> str:
    name = _NAMES.get(span.kind, span.kind)
    return f"{name} of stage {span.stage} on micro-batch {span.micro_batch}"
