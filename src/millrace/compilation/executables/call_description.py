"""Descriptions, for the compile log, of a user's functions and of the arguments of a call.

name      train              `<lambda> at train.py:12`
number    of an object       never reused for another one, unlike an address
shapes    float32[32,8], int32[]
"""

import itertools
import threading
import weakref
from types import CodeType
from typing import Any

import jax

from millrace.compilation.explain.walk import source_of

SHOWN = 6  # arguments whose shapes are written out; others are counted

_lock = threading.Lock()
_numbers: dict[int, tuple[Any, int]] = {}  # by address: a reference to the object, and its number
_next = itertools.count(1)


def inner_function(function: object) -> Any:
    """Returns the function inside one of `jax.jit` or `millrace.compile`."""
    return getattr(function, "__wrapped__", function)


def name_of(function: object) -> str:
    """Returns the name of a function; of a lambda with its file and line."""
    name = getattr(function, "__name__", None)
    if name is None:
        name = getattr(getattr(function, "func", None), "__name__", type(function).__name__)
    if name == "<lambda>":
        code = getattr(inner_function(function), "__code__", None)
        return f"{name} at {source_of(code)}" if isinstance(code, CodeType) else name
    return name


def new_number() -> int:
    """Returns a number that stands for no object yet."""
    return next(_next)


def number_of(value: object) -> int:
    """Returns the number that stands for an object in this process."""
    with _lock:
        reference, number = _numbers.get(id(value), (None, 0))
        if reference is not None and reference() is value:
            return number
        number = new_number()
        try:
            _numbers[id(value)] = weakref.ref(value), number
        except TypeError:  # a class without weak references: the object is kept alive
            _numbers[id(value)] = (lambda: value), number
        if number % 1024 == 0:
            for key in [key for key, (reference, _) in _numbers.items() if reference() is None]:
                del _numbers[key]
        return number


def shapes_of(arguments: object) -> str:
    """Returns dtypes and shapes of the arrays and numbers among arguments, as text."""
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if _is_array(leaf)]
    texts = [_shape(leaf) for leaf in leaves[:SHOWN]]
    more = len(leaves) - len(texts)
    return ", ".join([*texts, f"{more} more"] if more else texts)


def _is_array(leaf: object) -> bool:
    return isinstance(leaf, int | float | complex) or hasattr(leaf, "dtype")


def _shape(leaf: object) -> str:
    shape = ",".join(map(str, getattr(leaf, "shape", ())))
    dtype = getattr(leaf, "dtype", None)
    return f"{type(leaf).__name__ if dtype is None else dtype}[{shape}]"
