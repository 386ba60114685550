"""Schedules as text: a notation to write and parse, and a drawing.

    write, parse                         grid, with 1B0 marked

    0F0 0F1 0B0 0B1  # a comment         stage 0 |F0 F1       B0---    B1---
    1F0 1B0 1F1 1B1                      stage 1 |   F0 >1B0< F1 B1---

Each line is a row: the tasks of one device group, in order. Letters identify the cells, so that
neither form needs colours. In a drawing

    time      0  1  2     4  5     7        9
    column    0  3  6    12 15    21       27

columns are to scale as far as labels permit: a time moves right until every label that ends there
fits. So it stays readable for any costs, and for measured times.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from statistics import median_low

from rich.console import Console

from millrace.base.records.table_text import TableRecord
from millrace.base.records.timeline import Span, Timeline, in_colors
from millrace.errors import ScheduleError
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.task import Schedule, Task, parse_task

_MOST_DRAWN = 2000  # tasks of a schedule that is printed


class DrawnSchedule(TableRecord, tuple[tuple[Task, ...], ...]):
    """A schedule that prints as a drawing."""

    __slots__ = ()

    def _print(self, console: Console) -> None:
        is_short = sum(map(len, self)) <= _MOST_DRAWN
        text = grid(self, width=console.width) if is_short else repr(self)
        console.print(in_colors(text), soft_wrap=True)

    _repr_pretty_ = TableRecord._repr_pretty_  # IPython prefers the first of a class with a `repr`

    def __repr__(self) -> str:
        return f"<schedule of {sum(map(len, self)):,} tasks on {len(self):,} device groups>"


def write(schedule: Schedule) -> str:
    """Returns the text of a schedule, one line for each row."""
    return "\n".join(" ".join(map(str, row)) for row in schedule)


def parse(text: str) -> Schedule:
    """Returns the schedule of a text, without checking it.

    Args:
        text: a line for each row. Commas count as spaces; `#` begins a comment; empty lines
            are skipped.

    Raises:
        ScheduleError: if a word is not a task; the message has the number of its line.
    """
    rows: list[tuple[Task, ...]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        try:
            row = tuple(map(parse_task, words))
        except ScheduleError as error:
            raise ScheduleError(f"Line {number} of the schedule: {error}") from None
        if row:
            rows.append(row)
    return tuple(rows)


def grid(drawn: Timeline | Schedule, marked: Task | None = None, width: int = 100) -> str:
    """Draws a line for each device group, with time from left to right.

    Args:
        drawn: a timeline, or a schedule, which is simulated with `UNIT_COST`.
        marked: a task to show as `>1B2<`, if the schedule has it.
        width: characters per line. Longer drawings continue in another block of lines below.

    Returns:
        Text without colours and without a newline at its end.

    Raises:
        ScheduleError: if `drawn` is a schedule that stops before its end.
    """
    timeline = drawn if isinstance(drawn, Timeline) else simulate(drawn, UNIT_COST)
    # Where each group has one stage, the name of its row is enough.
    plain = timeline.has_stage_per_group
    labels = {s: f"{s.kind}{s.micro_batch}" if plain else str(s) for s in timeline.spans}
    cell = 1 + max(map(len, labels.values()), default=0)
    labels.update((span, f">{span}<") for span in timeline.spans if str(span) == str(marked))
    names = [f"{'stage' if plain else 'group'} {n} |" for n in range(timeline.num_groups)]
    margin = max(map(len, names), default=0)
    rows, uncut = lay_out(timeline, labels, cell)
    blocks = [
        "\n".join(
            (name.rjust(margin) + row[cut]).rstrip() for name, row in zip(names, rows, strict=True)
        )
        for cut in cuts(len(rows[0]) if rows else 0, uncut, width - margin)
    ]
    return "\n\n".join(blocks)


SLACK = 6  # columns that a cut may move to the left of a label


def lay_out(
    timeline: Timeline, labels: Mapping[Span, str], cell: int
) -> tuple[list[str], set[int]]:
    """Draws one line for each device group.

    Args:
        timeline: to draw. Tasks that take no time are left out.
        labels: text at the start of each task's cell.
        cell: columns of a task of median duration.

    Returns:
        The lines, of one length, and the columns at which a cut would go through a label.
    """
    column = _columns(timeline, labels, cell)
    length = max(column.values(), default=0)
    lines = [[" "] * length for _ in range(timeline.num_groups)]
    uncut: set[int] = set()
    for span, label in labels.items():
        begin, end = column[span.start], column[span.end] - 1
        if begin < end:
            lines[span.group][begin:end] = label.ljust(end - begin, "-")
            uncut.update(range(begin + 1, begin + len(label)))
    return ["".join(line) for line in lines], uncut


def _columns(timeline: Timeline, labels: Mapping[Span, str], cell: int) -> dict[float, int]:
    spans = [span for span in timeline.spans if span.start < span.end]
    ending: dict[float, list[Span]] = defaultdict(list)
    for span in spans:
        ending[span.end].append(span)
    # By the median, since a few very short tasks would stretch everything else.
    scale = cell / median_low(span.duration for span in spans) if spans else 1.0
    column: dict[float, int] = {}
    before, at = 0.0, 0
    for time in sorted({time for span in timeline.spans for time in (span.start, span.end)}):
        at += round(scale * time) - round(scale * before)
        at = max([at, *(column[s.start] + len(labels[s]) + 1 for s in ending[time])])
        column[time] = at
        before = time
    return column


def cuts(length: int, uncut: Collection[int], width: int) -> Iterator[slice]:
    """Yields the slices, at most `width` long, into which lines of `length` columns are cut.

    They are about equally long. A slice ends earlier where its end would cut a label.
    """
    width = max(width, 1)
    parts = -(-length // width)
    if parts > 1:
        width = min(width, -(-length // parts) + SLACK)
    begin = 0
    while begin < length:
        last = min(begin + width, length)
        end = next((cut for cut in range(last, begin, -1) if cut not in uncut), last)
        yield slice(begin, end)
        begin = end
