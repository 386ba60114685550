"""The memory of a program as a picture: SVG text without scripts or files, for any page.

title          sequential, train_run
numbers        peak 5.07 MB at point 91 of 163, in dense_2, backward
areas               ___|‾‾|___        one for each role, one on another
axes           0 MB |__________|  program points
legend         [] parameters  [] optimizer ...
tensors        the largest at the peak, as a table
"""

from collections.abc import Iterator, Sequence
from html import escape

from millrace.records.memory import LiveBuffer, bytes_text

RoleCurve = tuple[str, Sequence[int]]  # a role, and its bytes at each program point

LEFT, TOP, WIDTH, HEIGHT = 76.0, 56.0, 720.0, 240.0  # pixels, of the areas
STEPS = 600  # of a curve; of more points each step shows the fullest
SHOWN = 10  # tensors
COLORS = {
    "parameters": "#3a67b1",
    "optimizer": "#7dbbe6",
    "accumulators": "#8c6bb1",
    "batches": "#efb541",
    "activations": "#12805f",
    "gradients": "#d1495b",
    "other": "#9aa5b1",
    # Of memory reports, which have the sums of two or three roles:
    "in flight": "#12805f",
    "temporaries": "#d1495b",
}

# Two sets of colours for all but the areas; the page's own background may be either.
_STYLE = """\
    .millrace-memory text { font: 12px ui-sans-serif, system-ui, sans-serif; fill: #1f2733 }
    .millrace-memory .title { font-size: 15px; font-weight: 600 }
    .millrace-memory .faint { fill: #5b6673 }
    .millrace-memory .end { text-anchor: end }
    .millrace-memory .paper { fill: #ffffff; stroke: #d7dde4 }
    .millrace-memory .grid { stroke: #d7dde4; fill: none }
    .millrace-memory .peak { stroke: #1f2733; stroke-dasharray: 3 3; fill: none }
    @media (prefers-color-scheme: dark) {
      .millrace-memory text { fill: #e6ebf1 }
      .millrace-memory .faint { fill: #a2adba }
      .millrace-memory .paper { fill: #12171e; stroke: #343d49 }
      .millrace-memory .grid { stroke: #343d49 }
      .millrace-memory .peak { stroke: #e6ebf1 }
    }
"""


def memory_svg(title: str, areas: Sequence[RoleCurve], point: int, where: str = "") -> str:
    """Draws the bytes of each role over the points of a program.

    Args:
        title: the first line; any text.
        areas: from the bottom to the top, all of the same length.
        point: the number of the point with the peak, which is marked.
        where: what runs there, in words.

    Returns:
        An SVG element. The same arguments give the same text.
    """
    areas = [(role, curve) for role, curve in areas if curve]
    count = max((len(curve) for _, curve in areas), default=0)
    total = sum(curve[point] for _, curve in areas)
    numbers = f"peak {bytes_text(total)}"
    if count > 1:
        numbers += f" at point {point + 1} of {count}{where and f', in {where}'}"
    height = TOP + HEIGHT + 62
    return "\n".join(
        [
            f'<svg class="millrace-memory" xmlns="http://www.w3.org/2000/svg" role="img" '
            f'viewBox="0 0 {LEFT + WIDTH + 20:g} {height:g}" width="{LEFT + WIDTH + 20:g}" '
            f'height="{height:g}">',
            f"  <title>{escape(title)}; {escape(numbers)}</title>",
            f"  <style>\n{_STYLE}  </style>",
            f'  <rect class="paper" x="0.5" y="0.5" width="{LEFT + WIDTH + 19:g}" '
            f'height="{height - 1:g}" rx="6"/>',
            f'  <text class="title" x="20" y="26">{escape(title)}</text>',
            f'  <text class="faint" x="20" y="45">{escape(numbers)}</text>',
            *_axis(total, count),
            *_areas(areas, count, total),
            *_peak(point, count),
            *_legend(areas, point),
            "</svg>",
        ]
    )


def tensors_table(tensors: Sequence[LiveBuffer]) -> str:
    """Returns the largest tensors as an HTML table."""
    rows = [
        f"<tr><td style='text-align:right'>{bytes_text(each.nbytes)}</td>"
        f"<td>{escape(each.layer)}</td><td>{escape(each.role)}</td>"
        f"<td>{escape(each.shape)}</td><td>{escape(each.operation or each.name)}</td></tr>"
        for each in tensors[:SHOWN]
    ]
    if not rows:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("bytes", "layer", "role", "shape", "tensor"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _axis(total: int, count: int) -> Iterator[str]:
    bottom = TOP + HEIGHT
    for part in range(5):
        y = bottom - HEIGHT * part / 4
        yield f'  <path class="grid" d="M{LEFT:g} {_n(y)}H{LEFT + WIDTH:g}"/>'
        yield (
            f'  <text class="faint end" x="{LEFT - 6:g}" y="{_n(y + 4)}">'
            f"{bytes_text(total * part / 4)}</text>"
        )
    if count > 1:
        yield f'  <text class="faint" x="{LEFT:g}" y="{bottom + 16:g}">point 1</text>'
        yield (
            f'  <text class="faint end" x="{LEFT + WIDTH:g}" y="{bottom + 16:g}">'
            f"point {count}</text>"
        )


def _areas(areas: Sequence[RoleCurve], count: int, total: int) -> Iterator[str]:
    if not count or not total:
        return
    points = _steps(areas, count)
    below = [0] * len(points)
    width = WIDTH / len(points)
    for role, curve in areas:
        above = [base + curve[point] for base, point in zip(below, points, strict=True)]
        upper = _outline(above, total, width)
        lower = _outline(below, total, width)[::-1]
        path = "L".join(f"{_n(x)} {_n(y)}" for x, y in [*upper, *lower])
        color = COLORS.get(role, COLORS["other"])
        most = bytes_text(max(curve))
        yield (
            f'  <path d="M{path}Z" fill="{color}">'
            f"<title>{escape(role)}: up to {most}</title></path>"
        )
        below = above


def _steps(areas: Sequence[RoleCurve], count: int) -> list[int]:
    """Returns the points to draw: all, or the one with most bytes of every few neighbours."""
    size = -(-count // STEPS)
    return [
        max(
            range(first, min(first + size, count)),
            key=lambda point: sum(curve[point] for _, curve in areas),
        )
        for first in range(0, count, size)
    ]


def _outline(sizes: Sequence[int], total: int, width: float) -> list[tuple[float, float]]:
    corners: list[tuple[float, float]] = []
    for number, size in enumerate(sizes):
        y = TOP + HEIGHT * (1 - size / total)
        corners += [(LEFT + number * width, y), (LEFT + (number + 1) * width, y)]
    # Of corners in one line only the first and the last are drawn.
    return [
        each
        for k, each in enumerate(corners)
        if k in (0, len(corners) - 1) or not corners[k - 1][1] == each[1] == corners[k + 1][1]
    ]


def _peak(point: int, count: int) -> Iterator[str]:
    if count > 1:
        x = LEFT + WIDTH * (point + 0.5) / count
        yield f'  <path class="peak" d="M{_n(x)} {TOP:g}V{TOP + HEIGHT:g}"/>'
        yield (
            f'  <text class="faint" x="{_n(min(x + 4, LEFT + WIDTH - 30))}" y="{TOP + 12:g}">'
            "peak</text>"
        )


def _legend(areas: Sequence[RoleCurve], point: int) -> Iterator[str]:
    x, y = LEFT, TOP + HEIGHT + 44
    for role, curve in areas:
        color = COLORS.get(role, COLORS["other"])
        words = f"{role} {bytes_text(curve[point])}"
        yield f'  <rect x="{_n(x)}" y="{y - 10:g}" width="11" height="11" rx="2" fill="{color}"/>'
        yield f'  <text class="faint" x="{_n(x + 15)}" y="{y:g}">{escape(words)}</text>'
        x += 15 + len(words) * 5.7 + 10


def _n(number: float) -> str:
    """Writes a number of pixels, to a hundredth."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
