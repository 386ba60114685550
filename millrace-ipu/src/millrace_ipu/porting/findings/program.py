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
from millrace_ipu.porting.replacements import canonical
from millrace_ipu.porting.tutorial_copies import TutorialModules

_MOST = 500  # files that are followed from one script
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class OwnModule:
    """One file of a program.

    Attributes:
        root: the directory in which its imports begin; None for a text that is in no file.
    """

    path: pathlib.Path
    source: SourceText
    tree: ast.Module
    encoding: str = "utf-8"
    root: pathlib.Path | None = None


def read_module(path: pathlib.Path, root: pathlib.Path) -> OwnModule:
    """Reads a file of a program.

    Args:
        path: the file. Its encoding is UTF-8, or the one that its first lines declare.
        root: the directory in which its imports begin.

    Raises:
        OSError: if it cannot be read.
        SyntaxError: if it is not Python.
        ValueError: if it is not text in that encoding.
    """
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(iter(data.splitlines(keepends=True)).__next__)
    text = data.decode(encoding)
    return OwnModule(path, SourceText(text), ast.parse(text), encoding, root)


class PortedProgram:
    """The files of a program, in the order in which they are found.

    Args:
        paths: its scripts, and modules that are named with them. Modules beside these that they
            import are part of it.
        text: the text of a program that is in no file.
    """

    def __init__(self, paths: Iterable[pathlib.Path], text: str | None = None) -> None:
        self.modules: list[OwnModule] = []
        self.unread: list[tuple[pathlib.Path, Exception]] = []
        self._names: dict[pathlib.Path, ImportedNames] = {}
        if text is not None:
            path = pathlib.Path("program.py")
            self.modules.append(OwnModule(path, SourceText(text), ast.parse(text)))
        for path in dict.fromkeys(paths):
            self._add(path, path.absolute().parent)
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
        nodes = (node for module in self.modules for node in ast.walk(module.tree))
        return frozenset(node.name for node in nodes if isinstance(node, _FUNCTIONS))

    def is_own(self, module: OwnModule, name: str, level: int) -> bool:
        """Whether an import of a file is one of another file of the program."""
        return self._file(module, name, level) is not None

    def served_by(self, module: OwnModule, name: str) -> str | None:
        """Returns the canonical name of the module that `millrace run` gives a program for its own.

        It does so for the modules of a tutorial, which programs copy; None for other modules.
        """
        alias = _aliases(module.root or pathlib.Path(os.devnull)).get(name)
        return None if alias is None else canonical(alias)

    def _add(self, path: pathlib.Path, root: pathlib.Path) -> None:
        try:
            self.modules.append(read_module(path, root))
        except (OSError, SyntaxError, ValueError) as error:
            self.unread.append((path, error))

    def _follow(self) -> None:
        """Adds the modules that the program imports, and those that they import."""
        seen = {each.path.absolute() for each in self.modules}
        seen |= {path.absolute() for path, _ in self.unread}
        for module in self.modules:  # it grows
            for name, level in _imports(module.tree):
                path = self._file(module, name, level)
                if path is not None and path.absolute() not in seen and len(seen) < _MOST:
                    seen.add(path.absolute())
                    self._add(path, module.root or path.parent)

    def _file(self, module: OwnModule, name: str, level: int) -> pathlib.Path | None:
        """Returns the file of an imported module, if it lies beside the script."""
        if module.root is None or (not level and self.served_by(module, name) is not None):
            return None
        folder = (module.root, *module.path.absolute().parents)[level]
        inner = folder.joinpath(*filter(None, name.split(".")))
        for path in (inner.with_suffix(".py"), inner / "__init__.py"):
            if path.is_file():
                home = pathlib.Path.cwd()
                return path.relative_to(home) if path.is_relative_to(home) else path
        return None

    def _exports(self, module: OwnModule, name: str, level: int) -> Mapping[str, str] | None:
        path = self._file(module, name, level)
        if path is None:
            return None
        own = next((m for m in self.modules if m.path.absolute() == path.absolute()), None)
        return {} if own is None else self.names(own).imported


@functools.cache
def _aliases(root: pathlib.Path) -> dict[str, str]:
    return TutorialModules(root).aliases


def _imports(tree: ast.Module) -> Iterable[tuple[str, int]]:
    """Yields the modules that a file imports, with the number of leading dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, level = [alias.name for alias in node.names], 0
        elif isinstance(node, ast.ImportFrom):
            module, level = node.module or "", node.level
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        else:
            continue
        for parts in (name.split(".") for name in names):
            yield from ((".".join(parts[:n]), level) for n in range(1, len(parts) + 1))
