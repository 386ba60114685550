"""HTML of what a record prints, for notebooks: a table as a table, other text as it stands.

It has no colours of text or paper but those of tasks and verdicts, so a notebook's theme decides.
A long line scrolls within its own box.
"""

import html
import io
import re
from collections.abc import Callable, Iterable
from typing import Any

from rich import terminal_theme
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

_WIDTH = 110  # columns of text; of a table the notebook decides
_SIZE = "font-size:13px"
_TEXT = (
    f'<pre style="{_SIZE};line-height:1.4;white-space:pre;overflow-x:auto;background:none;'
    'border:none;margin:4px 0">{code}</pre>'
)


def html_of(print_on: Callable[[Console], None]) -> str:
    """Returns the HTML of what `print_on` prints on a console."""
    console = _Collector()
    print_on(console)
    return f'<div style="overflow-x:auto">{"".join(console.parts())}</div>'


class _Collector(Console):
    """Collects what is printed."""

    def __init__(self):
        super().__init__(
            file=io.StringIO(), record=True, width=_WIDTH, highlight=False, force_jupyter=False
        )
        self._parts: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Takes a table, or text in the form of rich."""
        if objects and isinstance(objects[0], Table):
            self._parts = [*self.parts(), _table(objects[0])]
        else:
            super().print(*objects, **options)

    def parts(self) -> list[str]:
        """Returns all tables and texts so far."""
        text = self.export_html(
            theme=terminal_theme.NIGHT_OWLISH, code_format="{code}", inline_styles=True
        )
        text = re.sub("text-decoration-color: #[0-9a-f]+;? ?", "", text).strip("\n")
        return [*self._parts, _TEXT.format(code=text)] if text else self._parts


def _table(table: Table) -> str:
    headers = [column.header for column in table.columns] if table.show_header else []
    rows = zip(*(column.cells for column in table.columns), strict=True)
    lines = [_row("th", table.columns, headers)] if any(headers) else []
    lines += [_row("td", table.columns, row) for row in rows]
    return f'<table style="{_SIZE}">{"".join(lines)}</table>'


def _row(tag: str, columns: Iterable[Column], cells: Iterable[object]) -> str:
    """Returns a row. Notebooks align to the right, and put lines that are broken into one."""
    text = ""
    for column, cell in zip(columns, cells, strict=True):
        plain = cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell)).plain
        space = "pre" if column.justify == "right" else "pre-wrap"
        style = f"text-align:{column.justify};white-space:{space};padding:2px 8px"
        text += f'<{tag} style="{style}">{html.escape(plain)}</{tag}>'
    return f"<tr>{text}</tr>"
