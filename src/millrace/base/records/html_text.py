"""HTML of what a record prints, for notebooks: a table as a table, other text as it stands.

It has no colours of text or paper but those of tasks and verdicts, so a notebook's theme decides.
A long line scrolls within its own box.
"""

import functools
import html
import io
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.terminal_theme import NIGHT_OWLISH
from rich.text import Text

_WIDTH = 110  # columns of text; of a table the notebook decides
_TEXT = (
    '<pre style="font:13px/1.4 monospace;white-space:pre;overflow-x:auto;background:none;'
    'border:none;margin:4px 0">{code}</pre>'
)


def html_of(print_on: Callable[[Console], None]) -> str:
    """Returns the HTML of what `print_on` prints on a console."""
    console = _Collector(
        file=io.StringIO(), record=True, width=_WIDTH, highlight=False, force_jupyter=False
    )
    print_on(console)
    return f'<div style="overflow-x:auto">{"".join([*console.parts, console.text()])}</div>'


class _Collector(Console):
    """Collects tables, and the text between them."""

    @functools.cached_property
    def parts(self) -> list[str]:
        return []

    def print(self, *objects: Any, **options: Any) -> None:
        """Takes a table, or text in the form of rich."""
        if objects and isinstance(objects[0], Table):
            self.parts += [self.text(), _table(objects[0])]
        else:
            super().print(*objects, **options)

    def text(self) -> str:
        """Returns the text since the last table."""
        text = self.export_html(theme=NIGHT_OWLISH, code_format="{code}", inline_styles=True)
        text = re.sub("text-decoration-color: #[0-9a-f]+;? ?", "", text).strip("\n")
        return text and _TEXT.format(code=text)


def _table(table: Table) -> str:
    rows = [*zip(*(column.cells for column in table.columns), strict=True)]
    if table.show_header:
        rows.insert(0, tuple(column.header for column in table.columns))
    text = ""
    for number, row in enumerate(rows):
        tag = "td" if number or not table.show_header else "th"
        text += "<tr>"
        for column, cell in zip(table.columns, row, strict=True):
            plain = cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain
            # Notebooks align to the right, and put lines that are broken into one.
            space = "pre" if column.justify == "right" else "pre-wrap"
            style = f"text-align:{column.justify};white-space:{space};padding:2px 8px"
            text += f'<{tag} style="{style}">{html.escape(plain)}</{tag}>'
        text += "</tr>"
    return f'<table style="font-size:13px">{text}</table>'
