"""Which functions are rewritten: those of tf.function, and plain functions of the user's they call.

Functions of installed packages, lambdas and those without a source stay as they are.
"""

import ast
import functools
import os
import sysconfig
import threading
import types
import weakref
from typing import Any

from millrace.tensorflow.conversion.rewrite import Rewriter
from millrace.tensorflow.conversion.source import RUNTIME, function_of, tree_of, value_at
from millrace.tensorflow.dispatch import is_real_tensor

ELEMENTS = "elements_of_iterators"  # the argument by which a compiled function is given them

# Holds the module that rewritten code calls, which itself needs this one (runtime.py fills it).
RUNTIME_CELL = types.CellType()

_lock = threading.RLock()
_converted: weakref.WeakKeyDictionary[types.FunctionType, Any] = weakref.WeakKeyDictionary()
# Lets `range` of TensorFlow be told from that of others; filled by those who define them.
MEANINGS: dict[str, set[int]] = {"range": set(), "GradientTape": set()}


def meaning(name: str, value: Any) -> Any:
    """Takes note of what a name of TensorFlow is, and returns it."""
    MEANINGS[name].add(id(value))
    return value


def called(function: Any) -> Any:
    """Returns what is called in place of a function that rewritten code calls."""
    if isinstance(function, types.MethodType):
        inner = called(function.__func__)
        return (
            function if inner is function.__func__ else types.MethodType(inner, function.__self__)
        )
    if not isinstance(function, types.FunctionType) or not _is_of_user(function):
        return function
    with _lock:
        found = _converted.get(function)
        if found is None:
            found = _converted[function] = _convert(function, is_compiled=False) or function
        return found


def compiled_form(function: Any) -> Any | None:
    """Returns a function as it is compiled: with another argument, for elements of iterators.

    None if its source cannot be found.
    """
    if isinstance(function, types.MethodType):
        inner = compiled_form(function.__func__)
        return None if inner is None else types.MethodType(inner, function.__self__)
    if not isinstance(function, types.FunctionType):
        return None
    return _convert(function, is_compiled=True)


def _convert(function: types.FunctionType, is_compiled: bool) -> Any | None:
    definition = tree_of(function)
    if definition is None:
        return None
    path = os.path.basename(function.__code__.co_filename)
    rewriter = Rewriter(definition, path, functools.partial(_means, function))
    definition.body = rewriter.rewritten()
    if is_compiled:
        _enter(definition)
    new: Any = function_of(definition, function, RUNTIME_CELL)
    if is_compiled:
        new.__kwdefaults__ = {**(new.__kwdefaults__ or {}), ELEMENTS: ((), ())}
    return new


def _enter(definition: ast.FunctionDef) -> None:
    """Lets a function take elements of iterators, and its numbers be numbers again."""
    arguments = definition.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    plain = [ast.parse(f"{name} = {RUNTIME}.plain({name})").body[0] for name in names]
    arguments.kwonlyargs.append(ast.arg(arg=ELEMENTS))
    arguments.kw_defaults.append(ast.Constant(value=None))
    (block,) = ast.parse(f"with {RUNTIME}.entering({ELEMENTS}): pass").body
    block.body = [*plain, *definition.body]  # type: ignore[attr-defined]
    definition.body = [block]


def _means(function: types.FunctionType, node: ast.expr, name: str) -> bool:
    """Whether an expression in a function is `tf.range`, or another name of TensorFlow."""
    value = value_at(node, function)
    if value is None:  # such as a name that the function imports itself
        return isinstance(node, ast.Attribute) and node.attr == name
    return id(value) in MEANINGS[name] or (is_real_tensor(value) and _named(value) == name)


def _named(value: Any) -> str:
    return getattr(value, "__name__", "")


_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        os.path.dirname(os.path.dirname(os.path.dirname(__file__))),  # millrace itself
    )
)


def _is_of_user(function: types.FunctionType) -> bool:
    path = function.__code__.co_filename
    return not path.startswith("<") and not os.path.realpath(path).startswith(_LIBRARIES)
