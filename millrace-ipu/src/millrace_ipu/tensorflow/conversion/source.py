"""The syntax tree of a function, the names in it, and the way back from a tree to a function.

tree_of(function)      -> its definition, with the line numbers of its file
function_of(tree, ...) -> a function with the closure and the globals of the original

x = y + 1              binds x, needs y
total += x             binds total, needs total (x is already bound)
"""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterable
from typing import Any

RUNTIME = "_millrace"  # the name of the runtime in rewritten code
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def tree_of(function: types.FunctionType) -> ast.FunctionDef | None:
    """Returns the definition of a function; None for a lambda, or if there is no source.

    Line numbers are those of its file.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    (definition,) = tree.body[:1] or [None]
    if not isinstance(definition, ast.FunctionDef) or definition.name != function.__name__:
        return None
    if any(_is_private(node) for node in ast.walk(definition)):
        return None
    ast.increment_lineno(definition, first - 1)
    definition.decorator_list = []
    return definition


def function_of(
    definition: ast.FunctionDef, original: types.FunctionType, runtime: types.CellType
) -> types.FunctionType:
    """Compiles a definition into a function that replaces the original.

    The definition is compiled inside an outer function that binds the names of the closure, so
    that the compiler looks them up in cells. The new function shares the cells of the original,
    and so sees every change of them.
    """
    names = [*original.__code__.co_freevars, RUNTIME]
    module = ast.parse(f"def outer({', '.join(names)}): pass")
    module.body[0].body = [definition]  # type: ignore[attr-defined]
    code = compile(ast.fix_missing_locations(module), original.__code__.co_filename, "exec")
    for name in ("outer", definition.name):
        (code,) = (c for c in code.co_consts if getattr(c, "co_name", "") == name)
    code = code.replace(co_qualname=original.__code__.co_qualname)
    cells = dict(
        zip(original.__code__.co_freevars, original.__closure__ or (), strict=True),
        **{RUNTIME: runtime},
    )
    new = types.FunctionType(
        code,
        original.__globals__,
        original.__name__,
        original.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    new.__kwdefaults__ = original.__kwdefaults__
    new.__qualname__, new.__module__ = original.__qualname__, original.__module__
    new.__doc__ = original.__doc__
    return new


def value_at(node: ast.expr, function: types.FunctionType) -> Any:
    """Returns the object that a dotted name stands for; None if it is bound only in a call."""
    if isinstance(node, ast.Attribute):
        return getattr(value_at(node.value, function), node.attr, None)
    if not isinstance(node, ast.Name):
        return None
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    for name, cell in zip(names, cells, strict=True):
        if name == node.id:
            try:
                return cell.cell_contents
            except ValueError:  # not assigned yet
                return None
    return function.__globals__.get(node.id)


def _is_private(node: ast.AST) -> bool:
    """Whether a class mangles the name, as rewritten methods are compiled outside of theirs."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name.startswith("__") and not name.endswith("__")


_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound(nodes: Iterable[ast.AST]) -> list[str]:
    """Returns the names that statements bind in their own scope, in order."""
    names: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names[node.id] = None
        elif isinstance(node, _NAMED) and node.name is not None:
            names[node.name] = None
        elif isinstance(node, ast.alias):
            names[(node.asname or node.name).partition(".")[0]] = None
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            for child in ast.iter_child_nodes(node):
                visit(child)

    for node in nodes:
        visit(node)
    return list(names)


def read(nodes: Iterable[ast.AST]) -> set[str]:
    """Returns the names that are read anywhere in the nodes, inner functions included."""
    return {
        node.id
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load | ast.Del)
    } | {
        node.target.id
        for root in nodes
        for node in ast.walk(root)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }


def needed(statements: Iterable[ast.stmt]) -> set[str]:
    """Returns the names that statements may read before they bind them themselves."""
    names: set[str] = set()
    _add_needed(list(statements), set(), names)
    return names


def _add_needed(statements: list[ast.stmt], certain: set[str], names: set[str]) -> set[str]:
    """Adds the names that statements need to `names`.

    Args:
        statements: in order.
        certain: names that are certainly bound before them.
        names: extended by those that are read and not certainly bound.

    Returns:
        The names that are certainly bound after the statements.
    """

    def reads(*nodes: ast.AST | None) -> None:
        names.update(read([node for node in nodes if node is not None]) - certain)

    for each in statements:
        if isinstance(each, ast.Assign):
            reads(each.value, *each.targets)
            certain = certain | set(bound(each.targets))
        elif isinstance(each, ast.If):
            reads(each.test)
            then = _add_needed(each.body, certain, names)
            certain = then & _add_needed(each.orelse, certain, names)
        elif isinstance(each, ast.For | ast.AsyncFor):
            reads(each.iter)
            _add_needed(each.body, certain | set(bound([each.target])), names)
            _add_needed(each.orelse, certain, names)
        elif isinstance(each, ast.While):
            reads(each.test)
            _add_needed(each.body, certain, names)
            _add_needed(each.orelse, certain, names)
        elif isinstance(each, ast.With | ast.AsyncWith):
            reads(*(item.context_expr for item in each.items))
            targets = [item.optional_vars for item in each.items if item.optional_vars]
            certain = _add_needed(each.body, certain | set(bound(targets)), names)
        elif isinstance(each, ast.Try):
            for body in (each.body, *(h.body for h in each.handlers), each.orelse, each.finalbody):
                _add_needed(body, certain, names)
        else:
            reads(each)
            certain = certain | set(bound([each]))
    return certain
