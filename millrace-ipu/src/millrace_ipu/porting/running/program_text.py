"""The syntax trees of a program: its script, and the modules of its own directory.

    import settings             -> DIRECTORY/settings.py
    from model.layers import x  -> DIRECTORY/model/__init__.py, model/layers.py, model/layers/x.py

Files that are missing or no Python are left out: running the program says so.
"""

import ast
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass

_MOST_FILES = 200


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """One file of a program."""

    path: pathlib.Path
    tree: ast.Module
    imports: tuple[pathlib.Path, ...]  # the program's own files that it may import


def read_program(script: pathlib.Path) -> list[ProgramFile]:
    """Returns the script first, and then the files of its directory that it imports.

    Args:
        script: path of a file of Python code.
    """
    root, files = script.absolute().parent, {}
    waiting = [script.absolute()]
    while waiting and len(files) < _MOST_FILES:
        path = waiting.pop(0)
        if path in files:
            continue
        tree = _parse(path)
        if tree is not None:
            imports = tuple(dict.fromkeys(_imported(tree, path.parent, root)))
            files[path] = ProgramFile(path, tree, imports)
            waiting += imports
    return list(files.values())


def _parse(path: pathlib.Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None


def _imported(tree: ast.Module, own: pathlib.Path, root: pathlib.Path) -> Iterator[pathlib.Path]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = root
            if node.level:
                start = (own, *own.parents)[min(node.level - 1, len(own.parents))]
            yield from _files(start, node.module or "")
            for alias in node.names:
                yield from _files(start, f"{node.module or ''}.{alias.name}")


def _files(root: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """Yields the files that exist for a dotted name, and for the packages around it."""
    place = root
    for part in filter(None, name.split(".")):
        place = place / part
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.is_file():
                yield path
