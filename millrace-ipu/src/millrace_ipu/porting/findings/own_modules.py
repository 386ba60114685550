"""The files of a program: a script, and the modules beside it that it imports.

train.py        import model; from data.loader import load        model.py, data/loader.py
data/loader.py  from . import shapes                              data/shapes.py
"""

import ast
import functools
import os
import pathlib
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace_ipu.porting.findings.source_text import SourceText
from millrace_ipu.porting.names import ImportedNames
from millrace_ipu.porting.tutorial_copies import TutorialModules

_NOWHERE = pathlib.Path(os.devnull)
_MOST = 500  # files that are followed from one script


@dataclass(frozen=True, slots=True)
class OwnModule:
    """One file of a program."""

    path: pathlib.Path
    source: SourceText
    tree: ast.Module
    encoding: str


def read_module(path: pathlib.Path) -> OwnModule:
    """Reads a file of a program.

    Args:
        path: the file. Its encoding is UTF-8, or the one that its first lines declare.

    Raises:
        OSError: if it cannot be read.
        SyntaxError: if it is not Python.
        ValueError: if it is not text in that encoding.
    """
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
    except SyntaxError as error:
        raise ValueError(str(error)) from error
    text = data.decode(encoding)
    return OwnModule(path, SourceText(text), ast.parse(text), encoding)


class PortedProgram:
    """The files of a program, in the order in which they are found.

    Args:
        paths: its scripts, and modules that are named with them.
        follows: whether modules beside these that they import are part of it.
        text: the text of a program that is in no file.
    """

    def __init__(
        self, paths: Iterable[pathlib.Path], follows: bool = True, text: str | None = None
    ) -> None:
        self.modules: list[OwnModule] = []
        self.unread: list[tuple[pathlib.Path, Exception]] = []
        self._roots: dict[pathlib.Path, pathlib.Path] = {}  # of each file, where its imports begin
        self._names: dict[pathlib.Path, ImportedNames] = {}
        for path in dict.fromkeys(paths):
            self._add(path, path.absolute().parent)
        if text is not None:
            name = pathlib.Path("program.py")
            self.modules.append(OwnModule(name, SourceText(text), ast.parse(text), "utf-8"))
        if follows:
            self._follow()

    def replace(self, modules: list[OwnModule]) -> None:
        """Gives the files other texts."""
        self.modules = modules
        self._names = {}

    def names(self, module: OwnModule) -> ImportedNames:
        """Returns what the names of a file stand for."""
        if module.path not in self._names:
            # Modules that import each other: the second one sees no names of the first.
            self._names[module.path] = ImportedNames(ast.Module([], []))
            exports = functools.partial(self._exports, module)
            self._names[module.path] = ImportedNames(module.tree, exports)
        return self._names[module.path]

    def defined(self) -> frozenset[str]:
        """Returns the names of all functions and methods that the program defines."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        trees = [module.tree for module in self.modules]
        return frozenset(
            node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)
        )

    def is_own(self, module: OwnModule, name: str, level: int) -> bool:
        """Whether an import of a file is one of another file of the program."""
        return self._file(module, name, level) is not None

    def served_by(self, module: OwnModule, name: str) -> str | None:
        """Returns the canonical name of the module that `millrace run` gives a program for its own.

        It does so for the modules of a tutorial, which programs copy; None for other modules.
        """
        alias = _aliases(self._roots.get(module.path, _NOWHERE)).get(name)
        return None if alias is None else alias.removeprefix("millrace_ipu.")

    def _add(self, path: pathlib.Path, root: pathlib.Path) -> None:
        try:
            module = read_module(path)
        except (OSError, SyntaxError, ValueError) as error:
            self.unread.append((path, error))
            return
        self._roots[path] = root
        self.modules.append(module)

    def _follow(self) -> None:
        """Adds the modules that the program imports, and those that they import."""
        seen = {path.absolute() for path in self._roots}
        seen |= {path.absolute() for path, _ in self.unread}
        for module in self.modules:  # it grows
            for name, level in _imports(module.tree):
                path = self._file(module, name, level)
                if path is not None and path.absolute() not in seen and len(seen) < _MOST:
                    seen.add(path.absolute())
                    self._add(path, self._roots[module.path])

    def _file(self, module: OwnModule, name: str, level: int) -> pathlib.Path | None:
        """Returns the file of an imported module, if it lies beside the script."""
        if module.path not in self._roots:  # a text without a file
            return None
        if not level and self.served_by(module, name) is not None:
            return None
        folder = module.path.parent if level else self._roots[module.path]
        for _ in range(level - 1):
            folder = folder.parent
        return _file_of(folder, name)

    def _exports(self, module: OwnModule, name: str, level: int) -> Mapping[str, str] | None:
        path = self._file(module, name, level)
        if path is None:
            return None
        own = next((m for m in self.modules if m.path.absolute() == path.absolute()), None)
        return {} if own is None else self.names(own).imported


@functools.cache
def _aliases(root: pathlib.Path) -> dict[str, str]:
    return TutorialModules(root).aliases


def _file_of(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    inner = folder.joinpath(*name.split(".")) if name else folder
    candidates = [inner / "__init__.py"]
    if name:
        candidates.insert(0, inner.with_name(f"{inner.name}.py"))
    for path in candidates:
        if path.is_file():
            home = pathlib.Path.cwd()
            absolute = path.absolute()
            return absolute.relative_to(home) if absolute.is_relative_to(home) else absolute
    return None


def _imports(tree: ast.Module) -> Iterable[tuple[str, int]]:
    """Yields the modules that a file imports, with the number of leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from ((".".join(parts[:n]), 0) for n in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            parts = module.split(".") if module else []
            yield from ((".".join(parts[:n]), node.level) for n in range(1, len(parts) + 1))
            for alias in node.names:
                yield f"{module}.{alias.name}".strip("."), node.level
