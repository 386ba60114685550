"""The choice of functions to rewrite: those of tf.function, and the user's functions they call.

Functions of installed packages, lambdas, and functions without source stay unchanged.
"""

import ast
import functools
import os
import sysconfig
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from millrace.extend import is_own_file
from millrace_ipu.tensorflow.conversion.rewrite import Rewriter
from millrace_ipu.tensorflow.conversion.source import RUNTIME, function_of, tree_of, value_at
from millrace_ipu.tensorflow.dispatch import is_real_tensor

Registered = TypeVar("Registered")

ELEMENTS = "elements_of_iterators"  # the argument that passes them to a compiled function

# Holds the module that rewritten code calls. It imports this one, so it fills the cell itself.
RUNTIME_CELL = types.CellType()

_lock = threading.RLock()
_rewritten: weakref.WeakKeyDictionary[types.FunctionType, types.FunctionType] = (
    weakref.WeakKeyDictionary()
)
# Addresses of TensorFlow's `range` and `GradientTape`, as others may have the same names.
RECOGNIZED: dict[str, set[int]] = {"range": set(), "GradientTape": set()}


def recognize(name: str, value: Registered) -> Registered:
    """Registers an object as TensorFlow's `range` or `GradientTape`, and returns it."""
    RECOGNIZED[name].add(id(value))
    return value


def converted(function: Any) -> Any:
    """Returns the function to call in place of `function`: rewritten, if it is the user's."""
    if isinstance(function, types.MethodType):
        inner = converted(function.__func__)
        return (
            function if inner is function.__func__ else types.MethodType(inner, function.__self__)
        )
    if not isinstance(function, types.FunctionType) or not _is_of_user(function):
        return function
    with _lock:
        cached = _rewritten.get(function)
        if cached is None:
            cached = _rewritten[function] = _convert(function, is_compiled=False) or function
        return cached


def compiled_form(function: object) -> Callable[..., Any] | None:
    """Returns the form of a function to compile: with an argument for elements of iterators.

    None if the source cannot be found.
    """
    if isinstance(function, types.MethodType):
        inner = compiled_form(function.__func__)
        return None if inner is None else types.MethodType(inner, function.__self__)
    if not isinstance(function, types.FunctionType):
        return None
    return _convert(function, is_compiled=True)


def _convert(function: types.FunctionType, is_compiled: bool) -> types.FunctionType | None:
    definition = tree_of(function)
    if definition is None:
        return None
    path = os.path.basename(function.__code__.co_filename)
    rewriter = Rewriter(definition, path, functools.partial(_names, function))
    definition.body = rewriter.rewritten()
    if is_compiled:
        _add_elements(definition)
    new = function_of(definition, function, RUNTIME_CELL)
    if is_compiled:
        new.__kwdefaults__ = {**(new.__kwdefaults__ or {}), ELEMENTS: ((), ())}
    return new


def _add_elements(definition: ast.FunctionDef) -> None:
    """Adds an argument for elements of iterators, and turns static numbers back into numbers."""
    arguments = definition.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    plain = [ast.parse(f"{name} = {RUNTIME}.plain({name})").body[0] for name in names]
    arguments.kwonlyargs.append(ast.arg(arg=ELEMENTS))
    arguments.kw_defaults.append(ast.Constant(value=None))
    (block,) = ast.parse(f"with {RUNTIME}.entering({ELEMENTS}): pass").body
    block.body = [*plain, *definition.body]  # type: ignore[attr-defined]
    definition.body = [block]


def _names(function: types.FunctionType, node: ast.expr, name: str) -> bool:
    """Whether an expression in a function stands for TensorFlow's `range` or `GradientTape`."""
    value = value_at(node, function)
    if value is None:  # such as a name that the function imports itself
        return isinstance(node, ast.Attribute) and node.attr == name
    is_real = is_real_tensor(value) and getattr(value, "__name__", "") == name
    return is_real or id(value) in RECOGNIZED[name]


_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    )
)


def _is_of_user(function: types.FunctionType) -> bool:
    path = function.__code__.co_filename
    is_library = is_own_file(path) or os.path.realpath(path).startswith(_LIBRARIES)
    return not path.startswith("<") and not is_library
