"""The style and the script of a page, from the files in `assets/`.

The files of the script are joined in the order of `SCRIPTS` into one function. So a name at the top
of one file is known in those after it, and nowhere else on the page.
"""

import functools
import pathlib

ASSETS = pathlib.Path(__file__).parent / "assets"
STYLES = ("uplot.min.css", "page.css")
LIBRARY = "uplot.min.js"
SCRIPTS = (
    "data.js",
    "units.js",
    "elements.js",
    "colors.js",
    "tooltip.js",
    "shown.js",
    "view.js",
    "lanes.js",
    "gantt_paint.js",
    "gantt.js",
    "gantt_input.js",
    "table.js",
    "curves.js",
    "memory_chart.js",
    "memory_tab.js",
    "trace_rows.js",
    "trace_tab.js",
    "summary_tab.js",
    "operations_tab.js",
    "compilation_tab.js",
    "feeds_tab.js",
    "tensors_tab.js",
    "compare_tab.js",
    "main.js",
)


@functools.cache
def style() -> str:
    """Returns all CSS."""
    return "\n".join(map(read, STYLES))


@functools.cache
def script() -> str:
    """Returns all JavaScript."""
    own = "\n".join(f"// {name}\n{read(name)}" for name in SCRIPTS)
    return f'{read(LIBRARY)}\n(function () {{\n"use strict";\n{own}\n}})();\n'


def read(name: str) -> str:
    """Returns the text of one of the files."""
    return (ASSETS / name).read_text(encoding="utf-8")
