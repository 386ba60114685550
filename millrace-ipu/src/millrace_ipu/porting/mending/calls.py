"""Arguments of Keras 2, rewritten by the table of habits when a program passes them.

mended_arguments("keras.optimizers.SGD", (), {"lr": 0.1})        -> (), {"learning_rate": 0.1}
mended_arguments("keras.Input", (), {"shape": 80})               -> (), {"shape": (80,)}
mended_arguments(".fit", (x, y), {"workers": 4})                 -> (x, y), {}
"""

import ast
import functools
import inspect
import logging
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from millrace.extend import Notes, replace
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.keras2 import HABITS, Edit, Habit, habits_of

MendedCall = tuple[tuple[Any, ...], dict[str, Any]]

logger = logging.getLogger("millrace")
notes = Notes()  # the lines that this process has logged


def note(line: str) -> None:
    """Logs a line about a mended habit, once in a process."""
    if notes.is_new(line):
        logger.warning("%s", line)


def mended_arguments(
    function: str, args: Sequence[Any], kwargs: Mapping[str, Any], offset: int = 0
) -> MendedCall:
    """Returns arguments for Keras 3.

    Args:
        function: a canonical name, such as `keras.optimizers.SGD`, or `.method`.
        args: positional arguments.
        kwargs: keyword arguments.
        offset: number of positional arguments before those of the program, such as `self`.
    """
    positional, named = list(args), dict(kwargs)
    for habit in _mended(function):
        index = None if habit.position is None else habit.position + offset
        if habit.argument in named:
            _mend(habit, named)
        elif habit.number and index is not None and index < len(positional):
            positional[index] = _as_tuple(positional[index])
    return tuple(positional), named


@functools.cache
def _mended(function: str) -> tuple[Habit, ...]:
    return tuple(habit for habit in habits_of(function) if habit.mended)


def _mend(habit: Habit, named: dict[str, Any]) -> None:
    value = named[habit.argument]
    if habit.edit is Edit.RENAME:
        named[habit.to] = named.pop(habit.argument)
    elif habit.edit is Edit.REMOVE and habit.value in ("", repr(value)):
        del named[habit.argument]
    elif habit.edit is Edit.TUPLE:
        named[habit.argument] = _as_tuple(value)
    elif habit.edit is Edit.VALUE and repr(value) == habit.value:
        named[habit.argument] = ast.literal_eval(habit.to)


def _as_tuple(value: object) -> object:
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return (int(value),) if is_number else value  # type: ignore[call-overload]


def signed(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Gives a replacement the signature of the original, as Keras reads that of layers."""

    def sign(function: Any) -> Any:
        function.__signature__ = inspect.signature(original)
        return function

    return sign


def let_classes_take_old_arguments() -> None:
    """Lets the classes of Keras that the table of habits names take arguments of Keras 2."""
    named = {o for habit in HABITS for o in habit.of if o.startswith("keras.")}
    named |= {f"keras.optimizers.{name}" for name in vars(keras.optimizers)}
    for name in sorted(named):
        owner: Any = keras
        for part in name.split(".")[1:]:
            owner = getattr(owner, part, None)
        if isinstance(owner, type) and "__init__" in vars(owner):
            wrapper = functools.partial(_initializer, name)
            replace(KERAS2_CALLS, wrapper, owner, "__init__")


def _initializer(name: str, original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: object, *args: Any, **kwargs: Any) -> None:
        args, kwargs = mended_arguments(name, args, kwargs)
        original(self, *args, **kwargs)

    return make


def replace_method(kind: type, name: str, wrapper: Callable[[Any], object]) -> None:
    """Wraps a method in the class that defines it, for the time of a script.

    Args:
        kind: the class, or one that inherits from it.
        name: of the method.
        wrapper: called with the method; returns its replacement.
    """
    owner = next(each for each in kind.__mro__ if name in vars(each))
    replace(KERAS2_CALLS, wrapper, owner, name)
