"""Calls of Keras as in Keras 2: wrappers of its functions, and arguments by the table of habits.

@around(keras.Model, "save")                                     a wrapper, called with the original
@added(keras.Model, "predict_classes")                           a method that Keras 3 does not have

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
from typing import Any, NamedTuple, TypeVar

import keras

from millrace.extend import Notes, put_in, replace
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.keras2 import HABITS, Edit, Habit, habits_of

Function = TypeVar("Function")
MendedCall = tuple[tuple[Any, ...], dict[str, Any]]

logger = logging.getLogger("millrace")
notes = Notes()  # the lines that this process has logged


class _Around(NamedTuple):
    """A wrapper of a function of a class or a module."""

    owner: Any
    name: str
    function: Callable[..., Any]
    sign: Callable[[Callable[..., Any]], inspect.Signature]


_around: list[_Around] = []
_added: list[tuple[Any, str, object]] = []


def around(
    owner: Any, *names: str, sign: Callable[[Callable[..., Any]], Any] = inspect.signature
) -> Callable[[Function], Function]:
    """Registers a function in place of others; its first argument is the original.

    Args:
        owner: the class or module. A method is wrapped in the class that defines it.
        names: of the functions.
        sign: returns the signature of the wrapper, which Keras reads, for an original.
    """

    def register(function: Any) -> Any:
        _around.extend(_Around(owner, name, function, sign) for name in names)
        return function

    return register


def added(owner: Any, *names: str) -> Callable[[Function], Function]:
    """Registers a method, or another attribute, of names that a class does not have."""

    def register(value: Any) -> Any:
        _added.extend((owner, name, value) for name in names)
        return value

    return register


def put_in_all() -> None:
    """Puts all that is registered in, and lets the classes of the table take old arguments."""
    for wrapper in _around:
        kinds = getattr(wrapper.owner, "__mro__", (wrapper.owner,))
        owner: Any = next(each for each in kinds if wrapper.name in vars(each))
        replace(KERAS2_CALLS, functools.partial(_wrapped, wrapper), owner, wrapper.name)
    for owner, name, value in _added:
        if not hasattr(owner, name):
            setattr(owner, name, value)
            undo = functools.partial(delattr, owner, name)
            put_in(KERAS2_CALLS, undo, key=(id(owner), name))
    named = {o for habit in HABITS for o in habit.of if o.startswith("keras.")}
    named |= {f"keras.optimizers.{name}" for name in vars(keras.optimizers)}
    for name in sorted(named):
        kind: Any = keras
        for part in name.split(".")[1:]:
            kind = getattr(kind, part, None)
        if isinstance(kind, type) and "__init__" in vars(kind):  # if no other has wrapped it
            function = functools.partial(_with_mended_arguments, name)
            wrapper = _Around(kind, "__init__", function, inspect.signature)
            replace(KERAS2_CALLS, functools.partial(_wrapped, wrapper), kind, "__init__")


def _wrapped(wrapper: _Around, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper.function(original, *args, **kwargs)

    call.__signature__ = wrapper.sign(original)  # type: ignore[attr-defined]
    return call


def _with_mended_arguments(
    function: str, original: Callable[..., None], self: object, *args: Any, **kwargs: Any
) -> None:
    args, kwargs = mended_arguments(function, args, kwargs)
    original(self, *args, **kwargs)


def note(line: str) -> None:
    """Logs a line about a mended habit, once in a process."""
    if notes.is_new(line):
        logger.warning("%s", line)


def mended_arguments(function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> MendedCall:
    """Returns arguments for Keras 3.

    Args:
        function: a canonical name, such as `keras.optimizers.SGD`, or `.method`.
        args: positional arguments.
        kwargs: keyword arguments.
    """
    positional, named = list(args), dict(kwargs)
    for habit in _mended(function):
        if habit.argument in named:
            _mend(habit, named)
        elif habit.edit is Edit.TUPLE and habit.position is not None:
            part = slice(habit.position, habit.position + 1)
            positional[part] = map(_as_tuple, positional[part])
    return tuple(positional), named


@functools.cache
def _mended(function: str) -> tuple[Habit, ...]:
    return tuple(habit for habit in habits_of(function) if habit.mended)


def _mend(habit: Habit, named: dict[str, Any]) -> None:
    value = named[habit.argument]
    if habit.value not in ("", repr(value)):
        return
    if habit.edit is Edit.RENAME:
        named[habit.to] = named.pop(habit.argument)
    elif habit.edit is Edit.REMOVE:
        del named[habit.argument]
    elif habit.edit is Edit.TUPLE:
        named[habit.argument] = _as_tuple(value)
    elif habit.edit is Edit.ELEMENT and isinstance(value, list | tuple) and len(value) == 1:
        named[habit.argument] = value[0]
    elif habit.edit is Edit.ARGUMENT:
        name, _, text = habit.to.partition("=")
        del named[habit.argument]
        named[name] = ast.literal_eval(text)


def _as_tuple(value: object) -> object:
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return (int(value),) if is_number else value  # type: ignore[call-overload]
