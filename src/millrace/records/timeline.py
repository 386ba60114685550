"""The tasks of an update over time, simulated or measured.

    group 0 |F0 F1       B0---    B1---    busy 6, idle 3
    group 1 |   F0 B0--- F1 B1---          busy 6, idle 3
             0                         9   bubble: 6 of 18 idle, 33 %

One forward leaves one activation set on its device group, for the backward of that micro-batch.
Counted over time, these sets are the memory that a pipeline needs besides its weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from millrace.records.timeline_svg import timeline_svg

DRAWN = 2_000  # tasks at most in a notebook, whose file holds the picture


@dataclass(frozen=True, slots=True)
class Span:
    """One task, from its start to its end. Prints as `2F0`."""

    stage: int
    kind: str  # F forward, B backward, or its halves: I for the inputs, W for the weights
    micro_batch: int
    group: int  # the device group that ran it
    start: float  # seconds, or units of cost, since the update began
    end: float

    @property
    def duration(self) -> float:
        """Time from start to end."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """All tasks of one update with their times."""

    spans: tuple[Span, ...]
    num_groups: int

    @property
    def num_stages(self) -> int:
        """Stages that have a task here, counted from 0 to the last one."""
        return max((span.stage + 1 for span in self.spans), default=0)

    @property
    def has_stage_per_group(self) -> bool:
        """Whether each device group runs the one stage of its own number."""
        return all(span.stage == span.group for span in self.spans)

    @property
    def end(self) -> float:
        """When the last task ends: the time of the whole update."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def busy(self) -> tuple[float, ...]:
        """Time in tasks, for each device group."""
        busy = [0.0] * self.num_groups
        for span in self.spans:
            busy[span.group] += span.duration
        return tuple(busy)

    @property
    def idle(self) -> tuple[float, ...]:
        """Time between tasks, before the first and after the last, for each device group."""
        end = self.end  # once: of a hundred thousand spans it takes a while
        return tuple(end - busy for busy in self.busy)

    @property
    def bubble(self) -> float:
        """Idle share of the time of all device groups, from 0 to 1."""
        end = self.end
        return sum(self.idle) / (self.num_groups * end) if end else 0.0

    @property
    def in_flight(self) -> tuple[int, ...]:
        """For each stage the most activation sets that it held at one time."""
        held: dict[int, list[tuple[float, float]]] = {}
        for stage, _, times in self._held():
            held.setdefault(stage, []).append(times)
        return tuple(_peak(held.get(number, ())) for number in range(self.num_stages))

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each device group the most activation sets that its stages held at one time."""
        held: dict[int, list[tuple[float, float]]] = {}
        for _, group, times in self._held():
            held.setdefault(group, []).append(times)
        return tuple(_peak(held.get(number, ())) for number in range(self.num_groups))

    def _repr_html_(self) -> str:
        """Returns the picture that a notebook shows; its unit of time is not known."""
        return self.as_html("timeline")

    def as_html(self, title: str, unit: str = "", scale: float = 1.0) -> str:
        """Returns a picture for a notebook: of the first tasks, where there are very many.

        Args:
            title: the first line of the picture, escaped in it.
            unit: of the times in it.
            scale: how many of these units are one unit of this timeline.
        """
        number = len(self.spans)
        if number > DRAWN:
            title = f"{title}: the first {DRAWN:,} of {number:,} tasks"
        spans = tuple(
            replace(span, start=span.start * scale, end=span.end * scale)
            for span in self.spans[:DRAWN]
        )
        picture = timeline_svg(Timeline(spans, self.num_groups), title, unit)
        # Notebooks shrink pictures to the width of the page, and letters with them.
        picture = picture.replace("<svg ", '<svg style="max-width: none" ', 1)
        return f'<div style="overflow-x: auto">{picture}</div>'

    def _held(self) -> list[tuple[int, int, tuple[float, float]]]:
        """Stage, group and time of each set: from its first task to its last, which is B or W."""
        sets: dict[tuple[int, int], tuple[int, int, tuple[float, float]]] = {}
        for span in self.spans:
            key = span.stage, span.micro_batch
            _, _, (start, end) = sets.get(key, (0, 0, (span.start, span.end)))
            times = min(start, span.start), max(end, span.end)
            sets[key] = span.stage, span.group, times
        return list(sets.values())


def _peak(intervals: Iterable[tuple[float, float]]) -> int:
    # Sorted, -1 comes before +1: a set that ends when another begins leaves its memory to it.
    changes = sorted(change for start, end in intervals for change in ((start, 1), (end, -1)))
    count = peak = 0
    for _, change in changes:
        count += change
        peak = max(peak, count)
    return peak
