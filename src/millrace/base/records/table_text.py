"""Records that show themselves: a line as `repr`, tables as text, and HTML in notebooks.

repr(plan)     TrainingPlan(model='mlp', ..., devices=<2>)      values of any number are counted
print(plan)    plan.show() in colour                            what `_print` prints
plan           in IPython: the same text, or as HTML
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.base.records.html_text import html_of
from millrace.base.records.printable import printable

_WIDTH = 110  # of a table that is not printed on a terminal
_LONGEST = 80  # characters of a value
_MOMENTS = ("began", "ended", "time")  # fields in seconds since 1970
_MOST_SHOWN = 8  # of a value's parts
_ENDS = 10  # rows that are shown of the begin and of the end of a long table

Record = TypeVar("Record", covariant=True)


def plain_table(*headers: str) -> Table:
    """Returns a table without lines. A header that begins with `>` is of numbers, on the right."""
    table = Table(box=None, pad_edge=False, show_header=any(each.strip(">") for each in headers))
    for header in headers:
        is_number = header.startswith(">")
        table.add_column(
            header.removeprefix(">"),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    return table


class TableRecord:
    """A record that prints itself on a console: unless it defines `_print`, field by field.

    The dataclasses of such records have `repr=False`, so that `repr` stays a line.
    """

    __slots__ = ()

    def show(self, console: Console | None = None) -> None:
        """Prints it on a console, in colour on a terminal; None is standard output."""
        console = console or Console(highlight=False)
        if console.is_terminal:
            self._print(console)
        else:
            print(self, file=console.file)

    def _print(self, console: Console) -> None:
        table = plain_table("", "")
        for name, value in _values(self):
            table.add_row(name, Text(_shown(name, value)))
        console.print(table)

    def _repr_html_(self) -> str:
        """Called by notebooks."""
        return html_of(self._print)

    def _repr_pretty_(self, printer: Any, is_cyclic: bool) -> None:
        """Called by IPython on a terminal."""
        printer.text(str(self))

    def __str__(self) -> str:
        return text_of(self._print)

    def __repr__(self) -> str:
        values = (f"{name}={_brief(value)}" for name, value in _values(self))
        return f"{type(self).__name__}({', '.join(values)})"


class RecordRows(TableRecord, tuple[Record, ...]):
    """Records of one kind. They print as a table; of a long one the middle is left out."""

    __slots__ = ()

    def _print(self, console: Console) -> None:
        numbers = range(len(self))
        rows = {k: dict(_values(self[k])) for k in {*numbers[:_ENDS], *numbers[-_ENDS:]}}
        names = {name: value for row in rows.values() for name, value in row.items() if value}
        signs = {name: ">" * isinstance(value, int | float) for name, value in names.items()}
        table = plain_table("", *(f"{signs[name]}{name.replace('_', ' ')}" for name in names))
        for k, row in sorted(rows.items()):
            if k and k - 1 not in rows:
                table.add_row("...")
            table.add_row(f"{k:,}", *(Text(_shown(name, row.get(name, ""))) for name in names))
        console.print(table if rows else "no records")

    _repr_pretty_ = TableRecord._repr_pretty_  # IPython prefers the first of a class with a `repr`

    def __repr__(self) -> str:
        return f"<{len(self):,} {type(self[0]).__name__}>" if self else "<no records>"


def _values(record: object) -> Iterable[tuple[str, object]]:
    """Yields the fields that say something, with their values."""
    for each in fields(cast(Any, record)) if is_dataclass(record) else ():
        value = getattr(record, each.name)
        if value is not None and not (isinstance(value, Sized) and not len(value)):
            yield each.name, value


def _shown(name: str, value: object) -> str:
    """Returns a value for a cell of a table."""
    if name in _MOMENTS and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value)) if value else ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    items = dict(cast(Mapping[str, object], value if isinstance(value, Mapping) else {}))
    if 0 < len(items) <= _MOST_SHOWN:
        return ", ".join(f"{key} {_shown(key, each)}" for key, each in items.items())
    return printable(value if isinstance(value, str) else _brief(cast(object, value)))


def _brief(value: object) -> str:
    """Returns a value as `repr` does, or how many there are if that is long."""
    is_many = isinstance(value, Sized) and not isinstance(value, str | TableRecord)
    count = len(cast(Sized, value)) if is_many else 0
    text = "" if count > _MOST_SHOWN else repr(value)
    if (text and len(text) <= _LONGEST) or isinstance(value, TableRecord):
        return text
    return f"<{count:,}>" if is_many else f"{text[:_LONGEST]}..."


def text_of(print_on: Callable[[Console], None]) -> str:
    """Returns the text that `print_on` prints on a console, without spaces at the ends of lines."""
    console = Console(highlight=False, width=_WIDTH, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        print_on(console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
