"""A function's source as a tree, and a tree as a function with the same closure and globals."""

import ast
import inspect
import textwrap
import types
from collections.abc import Callable
from typing import Any

RUNTIME = "_millrace"  # what rewritten code calls its runtime


def tree_of(function: types.FunctionType) -> ast.FunctionDef | None:
    """Returns the definition of a function; None if there is no source, or it is a lambda's.

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
) -> Callable[..., Any]:
    """Compiles a definition in place of a function.

    It stands in a function that has the names of the closure, so that they are found in cells;
    these are then the cells of the original, which change as it changes them.
    """
    free = [*original.__code__.co_freevars, RUNTIME]
    arguments = ast.arguments(
        posonlyargs=[],
        args=[ast.arg(arg=name) for name in free],
        kwonlyargs=[],
        kw_defaults=[],
        defaults=[],
    )
    outer = ast.FunctionDef(
        name=f"{definition.name}_outer", args=arguments, body=[definition], decorator_list=[]
    )
    outer.type_params = []  # type: ignore[attr-defined]  # of Python 3.12
    module = ast.fix_missing_locations(ast.Module(body=[outer], type_ignores=[]))
    code = compile(module, original.__code__.co_filename, "exec")
    (code,) = (x for x in code.co_consts if isinstance(x, types.CodeType))
    code = next(
        x for x in code.co_consts if isinstance(x, types.CodeType) and x.co_name == definition.name
    )
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
    """Returns what a dotted name means in a function; None if only a call of it will tell."""
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
    """Whether a name has another spelling within a class, where the definition no longer is."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return name.startswith("__") and not name.endswith("__")
