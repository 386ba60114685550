"""The meaning of a module's names, under the names that all packages share.

import tensorflow as tf            tf.keras.layers.Dense  ->  keras.layers.Dense
from tensorflow.python import ipu  ipu.config.IPUConfig   ->  ipu.config.IPUConfig
L = tf.keras.layers                L.Dense                ->  keras.layers.Dense
def f(ipu): ...                    ipu in f               ->  None: an argument
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from millrace_ipu.porting.replacements import canonical

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# Of a module of the program: its names, as dotted names under the packages they come from.
ModuleNames = Callable[[str, int], Mapping[str, str] | None]


def no_modules(name: str, level: int) -> None:
    """The `ModuleNames` of a program in one file."""


class ImportedNames:
    """The imports of a module, and plain assignments of imported names.

    Args:
        tree: the syntax tree of the module.
        exports: returns the names of another module of the program, by the module's name and the
            number of leading dots; None for a module that is not part of the program.
    """

    def __init__(self, tree: ast.Module, exports: ModuleNames = no_modules) -> None:
        self._names: dict[str, str] = {}
        self._modules: dict[str, Mapping[str, str]] = {}  # the program's own, as imported
        self._hidden = frozenset(_hidden(tree))
        assigned = _assigned_once(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node, exports)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node, exports)
        for name, value in assigned.items():
            dotted = self.spelled(value)
            if dotted is not None and name not in self._names:
                self._names[name] = dotted

    @property
    def imported(self) -> Mapping[str, str]:
        """The dotted name of each name."""
        return MappingProxyType(self._names)

    def resolve(self, node: ast.AST) -> str | None:
        """Returns the canonical dotted name of an expression; None if it was not imported."""
        dotted = self.spelled(node)
        return None if dotted is None else canonical(dotted)

    def spelled(self, node: ast.AST) -> str | None:
        """Returns the dotted name of an expression as the program's imports spell it."""
        attributes: list[str] = []
        while isinstance(node, ast.Attribute):
            attributes.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or id(node) in self._hidden:
            return None
        root = self._names.get(node.id)
        if root is None and attributes and node.id in self._modules:
            root = self._modules[node.id].get(attributes.pop(0))
        return None if root is None else ".".join([root, *attributes])

    def _import(self, node: ast.Import, exports: ModuleNames) -> None:
        for alias in node.names:
            own = exports(alias.name, 0)
            bound = alias.name if alias.asname else alias.name.partition(".")[0]
            if own is not None:
                self._modules[alias.asname or alias.name] = own
            else:
                self._names.setdefault(alias.asname or bound, bound)

    def _import_from(self, node: ast.ImportFrom, exports: ModuleNames) -> None:
        own = exports(node.module or "", node.level)
        for alias in node.names:
            if own is None and node.level:
                continue
            if own is None:
                self._names.setdefault(alias.asname or alias.name, f"{node.module}.{alias.name}")
            elif alias.name == "*":
                for name, dotted in own.items():
                    self._names.setdefault(name, dotted)
            elif alias.name in own:
                self._names.setdefault(alias.asname or alias.name, own[alias.name])
            else:
                module = exports(f"{node.module or ''}.{alias.name}".strip("."), node.level)
                if module is not None:
                    self._modules[alias.asname or alias.name] = module


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a scope, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Function | ast.ClassDef):
            yield from _within(child)


def _hidden(node: ast.AST, local: frozenset[str] = frozenset()) -> Iterator[int]:
    """Yields the ids of the nodes whose names are local variables."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and child.id in local:
            yield id(child)
        if isinstance(child, _Function):
            yield from _hidden(child, local | _locals(child))
        else:
            yield from _hidden(child, local)


def _locals(function: _Function) -> frozenset[str]:
    """Returns the names of a function's parameters, and of what is assigned in it."""
    given = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    stored = {
        node.id
        for node in _within(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    declared = {
        name for node in _within(function) if isinstance(node, ast.Global) for name in node.names
    }
    return frozenset(given | (stored - declared))


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns the names of the module that get another name's value, and no other value."""
    stored = [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return {
        target.id: node.value
        for node in _within(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute | ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name) and stored.count(target.id) == 1
    }
