"""A timeline as a picture: SVG text without other files, for light and dark pages.

    title          1f1b: 4 stages, 8 micro-batches
    numbers        bubble 27.3 %: 36 of 132 idle
    rows           stage 0 |F0|F1|F2|F3|   idle   | B0  |F4| ...
    time axis              0        5        10       15
    legend         [] F forward  [] B backward  [] idle

Widths are to scale. A task's tooltip has its name and its times. Labels that do not fit into their
tasks are left out.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import median_low
from typing import NamedTuple, Protocol
from xml.sax.saxutils import escape

LEFT, RIGHT, TOP, ROW, GAP = 84.0, 20.0, 72.0, 30.0, 6.0  # pixels
LEAST_WIDTH, MOST_WIDTH = 720.0, 4000.0  # of the rows
LETTER = 7.6  # pixels of a label's letter, in the widest of the usual fonts
TICKS = 10  # at most


class DrawnSpan(Protocol):
    """A `Span`, whose module imports this one."""

    @property
    def stage(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def duration(self) -> float: ...


class DrawnTimeline(Protocol):
    """A `Timeline`."""

    @property
    def spans(self) -> Sequence[DrawnSpan]: ...
    @property
    def num_groups(self) -> int: ...
    @property
    def has_stage_per_group(self) -> bool: ...
    @property
    def end(self) -> float: ...
    @property
    def idle(self) -> Sequence[float]: ...
    @property
    def bubble(self) -> float: ...


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

# Two sets of colours for everything but the tasks; the page's own background may be either.
_STYLE = """\
    .timeline text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2733 }
    .timeline .title { font-size: 15px; font-weight: 600 }
    .timeline .faint { fill: #5b6673 }
    .timeline .label { font-size: 11px; font-weight: 600; text-anchor: middle }
    .timeline .tick { text-anchor: middle }
    .timeline .paper { fill: #ffffff; stroke: #d7dde4 }
    .timeline .idle { fill: #edf0f4 }
    .timeline .grid { stroke: #d7dde4 }
    .timeline .tasks { stroke: #ffffff }
    @media (prefers-color-scheme: dark) {
      .timeline text { fill: #e6ebf1 }
      .timeline .faint { fill: #a2adba }
      .timeline .paper { fill: #12171e; stroke: #343d49 }
      .timeline .idle { fill: #222a34 }
      .timeline .grid { stroke: #343d49 }
      .timeline .tasks { stroke: #12171e }
    }
"""


def timeline_svg(timeline: DrawnTimeline, title: str, unit: str = "") -> str:
    """Draws a row for each device group, with time from left to right.

    Args:
        timeline: what to draw, simulated or measured.
        title: the first line of the picture.
        unit: of its times, such as "s"; simulated times have none.

    Returns:
        An SVG document. The same arguments give the same text.
    """
    scale = _scale(timeline)
    rows_end = TOP + timeline.num_groups * (ROW + GAP)
    width, height = LEFT + scale * timeline.end + RIGHT, rows_end + 62
    width = max(width, LEFT + LEAST_WIDTH + RIGHT)
    unit = f" {unit}" if unit else ""
    idle, whole = sum(timeline.idle), timeline.num_groups * timeline.end
    bubble = f"bubble {timeline.bubble:.1%}: {idle:g}{unit} of {whole:g}{unit} idle"
    colors = [
        f"    .timeline .{kind} rect {{ fill: {color} }}\n"
        f"    .timeline .{kind} text {{ fill: {ink} }}\n"
        for kind, (_, color, ink) in PASS_STYLES.items()
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" '
            f'viewBox="0 0 {_n(width)} {_n(height)}" '
            f'width="{_n(width)}" height="{_n(height)}" role="img">',
            f"  <title>{escape(title)}; {bubble}</title>",
            f"  <style>\n{_STYLE}{''.join(colors)}  </style>",
            f'  <rect class="paper" x="0.5" y="0.5" width="{_n(width - 1)}" '
            f'height="{_n(height - 1)}" rx="6"/>',
            f'  <text class="title" x="20" y="30">{escape(title)}</text>',
            f'  <text class="faint" x="20" y="51">{bubble}</text>',
            *_rows(timeline, scale),
            *_axis(timeline.end, scale, rows_end, unit),
            *_tasks(timeline, scale, unit),
            *_legend(timeline, rows_end + 46),
            "</svg>\n",
        ]
    )


def _scale(timeline: DrawnTimeline) -> float:
    """Returns pixels per unit of time: enough for the label of a task of median length."""
    lengths = [span.duration for span in timeline.spans if span.duration > 0]
    if not lengths:
        return 0.0
    letters = max(len(_label(timeline, span)) for span in timeline.spans)
    wanted = (letters * LETTER + 5) / median_low(lengths)
    return min(max(wanted, LEAST_WIDTH / timeline.end), MOST_WIDTH / timeline.end)


def _rows(timeline: DrawnTimeline, scale: float) -> Iterator[str]:
    what = "stage" if timeline.has_stage_per_group else "group"
    for group in range(timeline.num_groups):
        y = TOP + group * (ROW + GAP)
        yield f'  <text class="faint" x="20" y="{_n(y + 20)}">{what} {group}</text>'
        yield (
            f'  <rect class="idle" x="{_n(LEFT)}" y="{_n(y)}" '
            f'width="{_n(scale * timeline.end)}" height="{_n(ROW)}"/>'
        )


def _axis(end: float, scale: float, y: float, unit: str) -> Iterator[str]:
    step = _tick_step(end)
    for number in range(int(end / step * (1 + 1e-9)) + 1 if end else 0):
        x = _n(LEFT + number * step * scale)
        yield f'  <path class="grid" d="M{x} {_n(TOP - 4)}V{_n(y)}"/>'
        yield (
            f'  <text class="faint tick" x="{x}" y="{_n(y + 14)}">'
            f"{number * step:.6g}{unit if number else ''}</text>"
        )


def _tick_step(end: float) -> float:
    """Returns 1, 2 or 5 times a power of ten."""
    if not end:
        return 1.0
    power = 10.0 ** math.floor(math.log10(end / TICKS))
    return next(m * power for m in (1, 2, 5, 10) if end / (m * power) <= TICKS * (1 + 1e-9))


def _tasks(timeline: DrawnTimeline, scale: float, unit: str) -> Iterator[str]:
    shortest = min((scale * span.duration for span in timeline.spans), default=0.0)
    line = min(1.0, shortest / 6)  # between neighbours, also where thousands are drawn
    yield f'  <g class="tasks" stroke-width="{_n(line)}">'
    for span in timeline.spans:
        # Rounded ends, not widths: a task that begins where another one ends touches it.
        x, right = (round(LEFT + scale * time, 3) for time in (span.start, span.end))
        y = TOP + span.group * (ROW + GAP)
        label = _label(timeline, span)
        text = ""
        if right - x >= len(label) * LETTER + 3:
            middle = f'x="{_n((x + right) / 2)}" y="{_n(y + 19)}"'
            text = f'<text class="label" stroke="none" {middle}>{label}</text>'
        yield (
            f'    <g class="{span.kind}"><title>{_tooltip(span, unit)}</title>'
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(right - x)}" height="{_n(ROW)}"/>'
            f"{text}</g>"
        )
    yield "  </g>"


def _label(timeline: DrawnTimeline, span: DrawnSpan) -> str:
    return f"{span.kind}{span.micro_batch}" if timeline.has_stage_per_group else str(span)


def _tooltip(span: DrawnSpan, unit: str) -> str:
    return (
        f"{span}: {PASS_STYLES[span.kind].name}, stage {span.stage}, "
        f"micro-batch {span.micro_batch}; "
        f"{span.start:.6g} to {span.end:.6g}{unit}"
    )


def _legend(timeline: DrawnTimeline, y: float) -> Iterator[str]:
    used = {span.kind for span in timeline.spans}
    entries = [
        (kind, f"{kind} {named.name}") for kind, named in PASS_STYLES.items() if kind in used
    ]
    x = LEFT
    for kind, words in [*entries, ("", "idle")]:
        box = f'<rect x="{_n(x)}" y="{_n(y - 11)}" width="14" height="14" rx="2"/>'
        yield (
            f'  <g class="{kind}">{box}</g>'
            if kind
            else box.replace("<rect", '  <rect class="idle"')
        )
        yield f'  <text class="faint" x="{_n(x + 20)}" y="{_n(y)}">{words}</text>'
        x += 20 + len(words) * 6.2 + 22


def _n(number: float) -> str:
    """Writes a number of pixels, to a thousandth."""
    return f"{number:.3f}".rstrip("0").rstrip(".")
