"""The output of `millrace cache`: the executables that are cached on disk."""

import collections
import json
import os
import pathlib
import time

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.cache import files as cache_files
from millrace.cache.use import default_root, limit_of_environment
from millrace.errors import OptionError
from millrace.records.cache import CacheEntry
from millrace.records.memory import bytes_text
from millrace.records.printable import printable

_PIPE_WIDTH = 160  # characters of a line that does not go to a terminal
_AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def show_entries(directory: pathlib.Path | None, as_json: bool, everything: bool) -> None:
    """Prints executables, the most recently used first.

    Args:
        directory: of the cache; None is that of the environment.
        as_json: prints a JSON list of all executables.
        everything: whether the table includes JAX's own small programs, such as `jit__uniform`.
    """
    root = _root(directory)
    entries = cache_files.entries(root)
    if as_json:
        print(json.dumps([_as_dict(entry) for entry in entries], indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=_PIPE_WIDTH)
    shown = [entry for entry in entries if entry.program or everything]
    hidden = len(entries) - len(shown)
    if shown:
        console.print(_table(shown, time.time()))
    if hidden:
        nbytes = sum(entry.nbytes for entry in entries) - sum(entry.nbytes for entry in shown)
        what = "1 program" if hidden == 1 else f"{hidden} programs"
        also = " more" if shown else ""
        line = f"{what}{also} of JAX itself, {bytes_text(nbytes)}: --all lists them."
        console.print(line, soft_wrap=True)
    if not entries:
        console.print(f"No executables in {root}.", markup=False, soft_wrap=True)


def show_statistics(directory: pathlib.Path | None, as_json: bool) -> None:
    """Prints the number and size of executables by version, platform and processor."""
    root = _root(directory)
    limit = limit_of_environment()
    counts: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    for file in cache_files.files(root):
        counts[file.path.parent.name] += 1
        sizes[file.path.parent.name] += file.nbytes
    versions = [
        {"version": name, "entries": counts[name], "bytes": sizes[name]} for name in sorted(counts)
    ]
    if as_json:
        total = {"entries": counts.total(), "bytes": sizes.total(), "limit": limit}
        print(json.dumps({"directory": str(root), **total, "versions": versions}, indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"directory  {root}", markup=False)
    console.print(f"entries    {counts.total()}")
    console.print(f"size       {bytes_text(sizes.total())} of {bytes_text(limit)}")
    if versions:
        table = Table("version, platform, processor", "entries", "size", box=None, pad_edge=False)
        for name in sorted(counts):
            table.add_row(name, str(counts[name]), bytes_text(sizes[name]))
        console.print("")
        console.print(table)


def clear_entries(directory: pathlib.Path | None, days: float | None) -> None:
    """Removes all executables, or those that were not used for `days` days; prints their number."""
    root = _root(directory)
    count, nbytes = cache_files.clear(root, 0.0 if days is None else days * 86400)
    what = "1 executable" if count == 1 else f"{count} executables"
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Removed {what} ({bytes_text(nbytes)}) from {root}.", markup=False)


def _root(directory: pathlib.Path | None) -> pathlib.Path:
    root = default_root() if directory is None else directory.absolute()
    if root is None:
        raise OptionError("There is no home directory for the cache. Set --dir.")
    return root


def _as_dict(entry: CacheEntry) -> dict[str, object]:
    return {
        "program": entry.program,
        "model": entry.model,
        "batch": entry.batch,
        "module": entry.module,
        "bytes": entry.nbytes,
        "used": entry.used,
        "created": entry.created,
        "version": entry.environment,
        "path": str(entry.path),
    }


def _table(entries: list[CacheEntry], now: float) -> Table:
    table = Table("program", "model", "batch", "size", "last used", box=None, pad_edge=False)
    for column in table.columns[3:]:
        column.justify, column.no_wrap = "right", True
    for entry in entries:
        table.add_row(
            Text(printable(entry.program or entry.module)),  # of JAX's own: a module only
            Text(printable(entry.model)),
            Text(printable(entry.batch)),
            bytes_text(entry.nbytes),
            f"{_age(now - entry.used)} ago",
            style=None if entry.program else "dim",
        )
    return table


def _age(seconds: float) -> str:
    for size, unit in _AGES:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "0 s"
