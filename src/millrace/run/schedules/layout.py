"""Layout of a drawn timeline: a column for each time, and lines cut between labels.

    time      0  1  2     4  5     7        9
    column    0  3  6    12 15    21       27
    stage 0  |F0 F1       B0---    B1---
    stage 1  |   F0 B0--- F1 B1---

Columns are to scale as far as labels permit: a time moves right until every label that ends there
fits. So the drawing stays readable for any costs, and for measured times.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from statistics import median_low

from millrace.base.records.timeline import Span, Timeline

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
