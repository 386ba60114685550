"""What the names of a program may stand for: a table for each file, function and class.

    REPLICAS = 2                    NameScope.names["REPLICAS"] = [Given(2)]
    for n in (1, 4):                NameScope.names["n"] = [Given((1, 4), is_element=True)]
    def configure(number=1):        the default, and `number` of all calls of `configure`
    args.replicas = 2               ProgramTables.attributes["replicas"]
    settings = {"replicas": 2}      ProgramTables.attributes["replicas"], too
    add_argument("--replicas", ...) ProgramTables.options["replicas"]

Nothing is run. Names are looked up as Python does: in functions, around them, in the module, in the
module that it imports them from.
"""

import ast
import pathlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace_ipu.porting.names import Function
from millrace_ipu.porting.running.program_text import ProgramFile

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(eq=False)
class NameScope:
    """The names of a module, a function or a class."""

    outer: "NameScope | None" = None
    owner: ast.AST | None = None  # the function or class
    names: "dict[str, list[Given]]" = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, str] = field(default_factory=dict)  # name -> the name in another module


@dataclass(frozen=True, eq=False)
class Given:
    """An expression for a value of a name; None for a value that code computes."""

    value: ast.expr | None
    scope: NameScope
    is_element: bool = False  # whether the name stands for each element of the value


@dataclass(frozen=True, eq=False)
class Branch:
    """A branch of an `if`."""

    test: ast.expr
    scope: NameScope
    is_taken: bool  # where the test holds; the other one is its `else`


@dataclass(eq=False)
class ProgramTables:
    """The tables of a program."""

    arguments: Sequence[str]  # of the command line
    modules: dict[pathlib.Path, NameScope] = field(default_factory=dict)
    functions: dict[str, list[tuple[Function, NameScope, bool]]] = field(
        default_factory=lambda: defaultdict(list)
    )  # the definitions of each name, the scope inside, and whether an argument comes before
    calls: dict[str, list[tuple[ast.Call, NameScope]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    attributes: dict[str, list[Given]] = field(default_factory=lambda: defaultdict(list))
    options: dict[str, list[tuple[ast.Call, NameScope]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    branches: "dict[ast.AST, tuple[Branch, ...]]" = field(default_factory=dict)  # around it
    values: dict[tuple[ast.expr, NameScope], list[Any]] = field(default_factory=dict)  # so far


def tables_of(files: Sequence[ProgramFile], arguments: Sequence[str]) -> ProgramTables:
    """Returns the tables of a program.

    Args:
        files: of it.
        arguments: of the command line, after the script.
    """
    program = ProgramTables(arguments)
    for file in files:
        scope = program.modules[file.path] = NameScope()
        _DefinitionReader(program, scope).visit_all(file.tree.body)
    _pass_arguments(program)
    return program


def last_name(node: ast.AST) -> str:
    """Returns `c` for `c` and `a.b.c`; an empty string for another expression."""
    return getattr(node, "attr", getattr(node, "id", ""))


class _DefinitionReader(ast.NodeVisitor):
    """Enters the definitions of one scope, and of those inside it."""

    def __init__(self, program: ProgramTables, scope: NameScope, branches: tuple[Branch, ...] = ()):
        self.program, self.scope, self.branches = program, scope, branches

    def visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, _SCOPES):
            self._enter(node)
        else:
            super().generic_visit(node)

    def _enter(self, node: ast.AST) -> None:
        inside = NameScope(self.scope, node)
        reader = _DefinitionReader(self.program, inside, self.branches)
        if isinstance(node, ast.ClassDef):
            self.visit_all([*node.decorator_list, *node.bases])
            reader.visit_all(node.body)
            for name, given in inside.names.items():
                self.program.attributes[name] += given  # fields of data classes
            return
        assert isinstance(node, Function)  # noqa: S101 - of `_SCOPES`
        self._parameters(node, inside)
        if isinstance(node, ast.Lambda):
            reader.visit(node.body)
            return
        self.visit_all(node.decorator_list)
        reader.visit_all(node.body)
        is_static = any(last_name(each) == "staticmethod" for each in node.decorator_list)
        is_method = isinstance(self.scope.owner, ast.ClassDef) and not is_static
        names = [node.name]
        if is_method and node.name == "__init__":
            names = [self.scope.owner.name]  # type: ignore[union-attr]
        for name in names:
            self.program.functions[name].append((node, inside, is_method))

    def _parameters(self, node: Function, inside: NameScope) -> None:
        parameters = node.args
        plain = [*parameters.posonlyargs, *parameters.args]
        defaults = parameters.defaults
        for parameter, value in zip(plain[len(plain) - len(defaults) :], defaults, strict=True):
            inside.names[parameter.arg].append(Given(value, self.scope))
        for parameter, value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            if value is not None:
                inside.names[parameter.arg].append(Given(value, self.scope))
        for value in (*defaults, *filter(None, parameters.kw_defaults)):
            self.visit(value)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        around = self.branches
        for body, is_taken in ((node.body, True), (node.orelse, False)):
            self.branches = (*around, Branch(node.test, self.scope, is_taken))
            self.visit_all(body)
        self.branches = around

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._give(target, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._give(node.target, node.value)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._give(node.target, node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._give(node.target, None)
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._give(node.target, node.iter, is_element=True)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._give(node.target, node.iter, is_element=True)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.program.attributes[key.value].append(Given(value, self.scope))
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.scope.imports[alias.asname or alias.name] = alias.name

    def visit_Call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        self.program.calls[name].append((node, self.scope))
        self.program.branches[node] = self.branches
        for option in _names_of_option(node, name):
            self.program.options[option].append((node, self.scope))
        self.generic_visit(node)

    def _give(self, target: ast.AST, value: ast.expr | None, is_element: bool = False) -> None:
        if value is not None:
            self.program.branches.setdefault(value, self.branches)
        if isinstance(target, ast.Name):
            self.scope.names[target.id].append(Given(value, self.scope, is_element))
        elif isinstance(target, ast.Attribute):
            self.program.attributes[target.attr].append(Given(value, self.scope, is_element))
        elif isinstance(target, ast.Subscript):
            key = target.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                self.program.attributes[key.value].append(Given(value, self.scope))
        elif isinstance(target, ast.Tuple | ast.List):
            parts = getattr(value, "elts", None)
            matches = not is_element and parts is not None and len(parts) == len(target.elts)
            for k, each in enumerate(target.elts):
                self._give(each, parts[k] if matches else None)  # type: ignore[index]


def _names_of_option(node: ast.Call, name: str) -> list[str]:
    """Returns the attribute that holds an option of argparse, absl or click; else nothing."""
    texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if name.startswith("DEFINE_"):
        return texts[:1]
    if name not in ("add_argument", "option", "argument"):
        return []
    for keyword in node.keywords:
        if keyword.arg == "dest" and isinstance(keyword.value, ast.Constant):
            return [str(keyword.value.value)]
    long = [text for text in texts if text.startswith("--")] or texts
    return [text.lstrip("-").replace("-", "_") for text in long[:1]]


def _pass_arguments(program: ProgramTables) -> None:
    """Gives the parameters of functions the arguments of all their calls."""
    for name, definitions in list(program.functions.items()):
        for node, inside, is_method in definitions:
            plain = [*node.args.posonlyargs, *node.args.args][is_method:]
            named = {each.arg for each in (*plain, *node.args.kwonlyargs)}
            for call, scope in program.calls.get(name, ()):
                for parameter, value in zip(plain, call.args, strict=False):
                    is_known = not isinstance(value, ast.Starred)
                    program.branches[value] = program.branches[call]
                    given = Given(value if is_known else None, scope)
                    inside.names[parameter.arg].append(given)
                for keyword in call.keywords:
                    program.branches[keyword.value] = program.branches[call]
                    if keyword.arg in named:
                        inside.names[keyword.arg].append(Given(keyword.value, scope))
    for calls in list(program.calls.values()):
        for call, scope in calls:
            for keyword in call.keywords:
                if keyword.arg and last_name(call.func)[:1].isupper():
                    # Config(replicas=2), argparse.Namespace(replicas=2)
                    program.attributes[keyword.arg].append(Given(keyword.value, scope))
