"""What the compile log says of a function of the user's and of what it is called with.

name      train              `<lambda> at train.py:12`
number    of an object       never given to another one, as an address is
shapes    float32[32,8], int32[]
"""

import itertools
import threading
import weakref
from collections.abc import Hashable
from types import CodeType
from typing import Any

import jax

from millrace.compiling.log import CompileLog
from millrace.explain.diagnose import explain
from millrace.explain.history import history
from millrace.explain.walk import place_of
from millrace.records.compilation import ProgramKey

SHOWN = 6  # arguments whose shapes are named; the number of others is given

_lock = threading.Lock()
_numbers: dict[int, tuple[Any, int]] = {}  # by address: a reference to the object, and its number
_next = itertools.count(1)
_made: weakref.WeakKeyDictionary[CompileLog, set[Hashable]] = weakref.WeakKeyDictionary()


def inner_function(function: Any) -> Any:
    """Returns the function that `jax.jit` or `millrace.compile` was given."""
    return getattr(function, "__wrapped__", function)


def name_of(function: Any) -> str:
    """Returns what a function is called; those without a name are told apart by their places."""
    name = getattr(function, "__name__", None)
    if name is None:
        name = getattr(getattr(function, "func", None), "__name__", type(function).__name__)
    if name == "<lambda>":
        code = getattr(inner_function(function), "__code__", None)
        return f"{name} at {place_of(code)}" if isinstance(code, CodeType) else name
    return name


def new_number() -> int:
    """Returns a number that means nothing yet."""
    return next(_next)


def number_of(found: Any) -> int:
    """Returns a number that means this object, as long as there is this process."""
    with _lock:
        reference, number = _numbers.get(id(found), (None, 0))
        if reference is not None and reference() is found:
            return number
        number = new_number()
        try:
            _numbers[id(found)] = weakref.ref(found), number
        except TypeError:  # of a kind that cannot be referred to: it is kept
            _numbers[id(found)] = (lambda: found), number
        if number % 1024 == 0:
            for key in [key for key, (known, _) in _numbers.items() if known() is None]:
                del _numbers[key]
        return number


class Reason:
    """Why a function is compiled, and whether it is a recompilation.

    It is one of a function that was compiled before, and of one that was made anew just like one
    that was; with other models it is another program.
    """

    def __init__(
        self, key: ProgramKey, log: CompileLog, number: int, objects: tuple[Hashable, ...] = ()
    ):
        """Finds the cause.

        Args:
            key: of the program.
            log: of what was compiled before.
            number: of the function.
            objects: numbers of the models that it was given.
        """
        self.cause = explain(key, history.keys(key.program), log.position())
        self._groups = {("function", number, *objects), ("program", key.digest, *objects)}
        with _lock:
            self._made = _made.setdefault(log, set())
            self.is_again = bool(self._groups & self._made)

    def has_led_to_an_executable(self) -> None:
        """Takes note of it: what fails is no compilation, and the next attempt none again."""
        with _lock:
            self._made |= self._groups


def shapes_of(arguments: Any) -> str:
    """Returns dtypes and shapes of the arrays and numbers among arguments, as text."""
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if _is_array(leaf)]
    texts = [_shape(leaf) for leaf in leaves[:SHOWN]]
    more = len(leaves) - len(texts)
    return ", ".join([*texts, f"{more} more"] if more else texts)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, int | float | complex) or hasattr(leaf, "dtype")


def _shape(leaf: Any) -> str:
    shape = ",".join(map(str, getattr(leaf, "shape", ())))
    dtype = getattr(leaf, "dtype", None)
    return f"{type(leaf).__name__ if dtype is None else dtype}[{shape}]"
