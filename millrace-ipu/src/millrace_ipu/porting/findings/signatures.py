"""The arguments that functions and classes of Keras and millrace take.

keras.callbacks.ModelCheckpoint   filepath, monitor, ..., save_freq      `period` is not among them
keras.layers.Dense                units, ..., and those of keras.layers.Layer, which gets **kwargs
"""

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

from millrace_ipu.porting.replacements import exists

_PACKAGES = {"ipu": "millrace_ipu.ipu", "tensorflow": "millrace_ipu.tensorflow", "keras": "keras"}
# An operation of `tf` takes its first argument under any name that TensorFlow has for it.
_OF_OPERATIONS = {"name", "input_tensor", "input", "tensor", "value", "values", "x", "features"}
_OF_OPERATIONS |= {"logits"}
_MORE = {"Model": ("inputs", "outputs", "name", "trainable", "dtype")}  # functional models
_POPPED = re.compile(r"""kwargs(?:\.pop\(|\.get\(|\[)\s*["'](\w+)["']|["'](\w+)["'] in kwargs""")


@functools.cache
def value_of(name: str) -> Any:
    """Returns the object with a canonical name; None if there is none."""
    if name.partition(".")[0] not in _PACKAGES or not exists(name):
        return None
    root, *attributes = name.replace("tensorflow.compat.v1.keras", "keras").split(".")
    owner: Any = importlib.import_module(_PACKAGES[root])
    for attribute in attributes:
        try:
            owner = getattr(owner, attribute)
        except AttributeError:
            try:
                owner = importlib.import_module(f"{owner.__name__}.{attribute}")
            except (AttributeError, ImportError):
                return None
    return owner


@functools.cache
def is_importable(name: str) -> bool:
    """Whether importing a canonical name works, if only for a name that raises when it is used."""
    root, *attributes = name.split(".")
    if root not in _PACKAGES:
        return False
    owner: Any = importlib.import_module(_PACKAGES[root])
    for attribute in attributes:
        try:
            owner = getattr(owner, attribute)
        except (AttributeError, ImportError):
            return False
    return True


def class_of(name: str) -> type | None:
    """Returns the class with a canonical name; None if there is none."""
    value = value_of(name)
    return value if isinstance(value, type) else None


def unknown_arguments(call: ast.Call, function: Callable[..., Any], bound: int = 0) -> list[str]:
    """Returns the names of a call's arguments that the function does not have.

    Args:
        call: the call in a program.
        function: the function or class that it calls.
        bound: number of leading parameters that are not in the call: 1 for a method.
    """
    taken = parameters_of(function)
    if taken is None:
        return []
    given = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    return [name for name in given if name not in taken[bound:]]


def has_too_many(call: ast.Call, function: Callable[..., Any], bound: int = 0) -> bool:
    """Whether a call has more positional arguments than the function takes."""
    if any(isinstance(each, ast.Starred) for each in call.args):
        return False
    signature = _signature(function)
    if signature is None:
        return False
    kinds = [each.kind for each in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return False
    positional = sum(
        kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for kind in kinds
    )
    return len(call.args) + bound > positional


@functools.cache
def requires_tensorflow(function: Callable[..., Any]) -> bool:
    """Whether a class of Keras refuses to be made where TensorFlow is not installed."""
    start = getattr(function, "__init__", None)
    return start is not None and "requires TensorFlow" in _source(start)


@functools.cache
def parameters_of(function: Callable[..., Any]) -> list[str] | None:
    """Returns the names that a function takes as arguments; None if it takes any."""
    signature = _signature(function)
    if signature is None:
        return None
    names = [*_names(signature), *_MORE.get(getattr(function, "__name__", ""), ())]
    if hasattr(function, "__wrapped__") and not isinstance(function, type):
        names += sorted(_OF_OPERATIONS - {*names})
    if not _takes_others(signature):
        return names
    if not isinstance(function, type):
        return None
    for base in function.__mro__:
        start = vars(base).get("__init__")
        signature = None if start is None else _signature(start)
        if start is None or signature is None:
            continue
        names += [name for name in _names(signature) if name not in names]
        names += _popped(start)
        body = _source(start).partition(":\n")[2]
        if not _takes_others(signature):
            return names
        if "**kwargs" not in body:  # it refuses others, or ignores them
            return names if "if kwargs" in body else None
    return names if function.__module__.startswith("keras.") else None


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _names(signature: inspect.Signature) -> list[str]:
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [name for name, each in signature.parameters.items() if each.kind not in variadic]


def _takes_others(signature: inspect.Signature) -> bool:
    kinds = [each.kind for each in signature.parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def _popped(function: Callable[..., Any]) -> list[str]:
    """Returns the names that a function takes out of its `**kwargs`."""
    return [first or second for first, second in _POPPED.findall(_source(function))]


def _source(function: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""
