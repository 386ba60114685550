"""The tasks of an update over time, simulated or measured.

    group 0 |F0 F1       B0---    B1---    busy 6, idle 3
    group 1 |   F0 B0--- F1 B1---          busy 6, idle 3
             0                         9   bubble: 6 of 18 idle, 33 %

One forward leaves one activation set on its device group, for the backward of that micro-batch.
Counted over time, these sets are the memory that a pipeline needs besides its weights.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from millrace.base.records.table_text import TableRecord

_ROWS = 24  # of a drawing that is printed


class PassStyle(NamedTuple):
    """The style of the tasks of one pass."""

    name: str
    color: str
    ink: str  # of the label


PASS_STYLES = {
    "F": PassStyle("forward", "#12805f", "#ffffff"),
    "B": PassStyle("backward", "#3a67b1", "#ffffff"),
    "I": PassStyle("backward, for inputs", "#7dbbe6", "#10202e"),
    "W": PassStyle("backward, for weights", "#efb541", "#2a1d00"),
}


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


@dataclass(frozen=True, slots=True, repr=False)
class Timeline(TableRecord):
    """All tasks of one update with their times. Prints as a drawing."""

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
        return self._most_held(self.num_stages, lambda span: span.stage)

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """For each device group the most activation sets that its stages held at one time."""
        return self._most_held(self.num_groups, lambda span: span.group)

    def drawn(self, width: int = 100) -> str:
        """Draws the tasks to scale, each at least one column wide.

            stage 0 |F0--    B0----F1--B1----    |
            stage 1 |    F0--B0----    F1--B1----|
            stage 2 |FFFF  BBBBBFFBBBBB  |             where tasks are shorter than their names

        Args:
            width: columns in all.
        """
        return self.painted(width, self.num_groups).plain

    def painted(self, width: int, most: int = _ROWS) -> Text:
        """Draws the tasks of the first groups in the colours of their passes; see `drawn`."""
        is_plain = self.has_stage_per_group
        what = "stage" if is_plain else "group"
        names = [f"{what} {group} |" for group in range(self.num_groups)]
        longest = max(map(len, names), default=0)
        columns = max(width - longest - 1, 1)
        step = self.end / columns or 1.0
        rows = [[(" ", "")] * columns for _ in names]
        for span in self.spans:
            label = f"{span.kind}{span.micro_batch}" if is_plain else str(span)
            first = min(round(span.start / step), columns - 1)
            length = max(round(span.end / step) - first, 1)
            cells = label.ljust(length, "-") if length >= len(label) else span.kind * length
            rows[span.group][first : first + length] = [(each, span.kind) for each in cells]
        styles = {kind: f"{style.ink} on {style.color}" for kind, style in PASS_STYLES.items()}
        text = Text(no_wrap=True)
        for name, row in [*zip(names, rows, strict=True)][:most]:
            text.append(f"{name:<{longest}}")
            for each, kind in row:
                text.append(each, styles.get(kind))
            text.append("|\n")
        text.append(f"... and {len(names) - most} more" if len(names) > most else "")
        text.rstrip()
        return text

    def _print(self, console: Console) -> None:
        console.print(self.painted(console.width), soft_wrap=True)
        console.print(f"bubble {self.bubble:.1%} of {self.end:.4g}")

    def _most_held(self, number: int, owner: Callable[[Span], int]) -> tuple[int, ...]:
        """Counts sets by owner. Each is held from its first task to its last, which is B or W."""
        sets: dict[tuple[int, int], tuple[int, float, float]] = {}
        for span in self.spans:
            key = span.stage, span.micro_batch
            _, start, end = sets.get(key, (0, span.start, span.end))
            sets[key] = owner(span), min(start, span.start), max(end, span.end)
        held: dict[int, list[tuple[float, float]]] = {}
        for which, *times in sets.values():
            held.setdefault(which, []).append((times[0], times[1]))
        return tuple(_peak(held.get(each, ())) for each in range(number))


def in_colors(drawing: str) -> Text:
    """Returns a drawing of tasks with spaces between them in the colours of their passes."""
    text = Text(drawing, no_wrap=True)
    for kind, style in PASS_STYLES.items():
        text.highlight_regex(rf"\b\d*{kind}\d+-*", f"{style.ink} on {style.color}")
    return text


def _peak(intervals: Iterable[tuple[float, float]]) -> int:
    # Sorted, -1 comes before +1: a set that ends when another begins leaves its memory to it.
    changes = sorted(change for start, end in intervals for change in ((start, 1), (end, -1)))
    count = peak = 0
    for _, change in changes:
        count += change
        peak = max(peak, count)
    return peak
