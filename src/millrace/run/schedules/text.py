"""Schedules as text: a notation to write and parse, and a drawing.

    write, parse                         grid, with 1B0 marked

    0F0 0F1 0B0 0B1  # a comment         stage 0 |F0 F1       B0---    B1---
    1F0 1B0 1F1 1B1                      stage 1 |   F0 >1B0< F1 B1---

Each line is a row: the tasks of one device group, in order. Letters identify the cells, so that
neither form needs colours.
"""

from millrace.base.records.timeline import Timeline
from millrace.errors import ScheduleError
from millrace.run.schedules.layout import cuts, lay_out
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.task import Schedule, Task, parse_task


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
