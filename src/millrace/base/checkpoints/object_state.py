"""The state of an object: its attributes of plain values and arrays that have changed.

    begin = ObjectState(callback)     when training begins
    begin.changes()                   what has changed since, to be saved
    begin.restore(changes)            in another process, which has begun in the same way

So a callback or a data set needs no methods of its own to be saved, and what its owner has chosen
(a patience, a path) is that of the program that runs, not of the one that was saved.
"""

import copy
import math
import random
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from millrace._compat.torch_loader import has_state
from millrace.base.checkpoints.plain_values import NotPlainError, copied, encode
from millrace.errors import CheckpointError

_NEVER = {"model", "_model", "params", "validation_data"}  # set by Keras for every training
_COMPARED = 1 << 24  # bytes of an array whose contents are compared; of a larger one a part


# Functions that callbacks of Keras choose when training has begun.
_COMPARISONS = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (keras.ops, np)
    for name in ("less", "less_equal", "greater", "greater_equal")
}
_COMPARISON_NAMES = {id(function): name for name, function in _COMPARISONS.items()}


Generators = np.random.Generator | np.random.RandomState | random.Random


def generator_state(generator: Generators) -> Any:
    """Returns the state of a generator of random numbers, as plain values and arrays."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    is_new = isinstance(generator, np.random.Generator)
    return generator.bit_generator.state if is_new else generator.get_state()


def set_generator(generator: Generators, state: Any) -> None:
    """Sets a state that `generator_state` has returned."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


class ObjectState:
    """The attributes of an object, and what they were at one time."""

    def __init__(self, owner: Any, by_methods: bool = False):
        self.owner = owner
        # An object with `get_state()` and `set_state(state)` may be saved by these instead.
        self._by_methods = by_methods and has_state(owner)
        self._begin = {name: _mark(value) for name, value in _attributes(owner)}
        self._firsts = {
            name: [copied(_plain(value))]
            for name, value in _attributes(owner)
            if (mark := self._begin[name]) is not None and mark.nbytes <= _COMPARED
        }

    def changes(self) -> Any:
        """Returns the attributes that have another value now, as plain values and arrays."""
        if self._by_methods:
            return self.owner.get_state()
        changed: dict[str, Any] = {}
        for name, value in _attributes(self.owner):
            if self._has_changed(name, value):
                function = _COMPARISON_NAMES.get(id(value))
                changed[name] = [_plain(value)] if function is None else {"function": function}
        return changed

    def _has_changed(self, name: str, value: Any) -> bool:
        mark = _mark(value)
        return mark is not None and mark != self._begin.get(name)

    def restore(self, changes: Any, resets: bool = True) -> None:
        """Sets attributes to values that `changes` has returned, and all others to their first.

        Args:
            changes: returned by `changes`.
            resets: False leaves those that are not among the changes as they are. So are, in any
                case, those with arrays of more than 16 MiB.

        Raises:
            CheckpointError: if it has not.
        """
        if self._by_methods:
            self.owner.set_state(changes)
            return
        now = _attributes(self.owner) if resets else []
        firsts = {
            name: self._firsts[name]
            for name, value in now
            if name in self._firsts and self._has_changed(name, value)
        }
        try:
            self._restore({**firsts, **changes})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            kind = type(self.owner)
            raise CheckpointError(
                f"The checkpoint holds no state of {kind.__module__}.{kind.__qualname__}: "
                f"{error!r}. Use the class that was saved, or name another directory in "
                "Checkpoint(directory)."
            ) from error

    def _restore(self, changes: Mapping[str, Any]) -> None:
        attributes = dict(_attributes(self.owner))
        for name, saved in changes.items():
            current = attributes.get(name)
            if isinstance(saved, dict):
                value = _COMPARISONS[saved["function"]]
            else:
                (value,) = saved
            if name.startswith("__"):
                raise ValueError(f"{name} is no attribute of its own")
            if isinstance(current, Generators):
                set_generator(current, value)
            elif name not in _NEVER:
                setattr(self.owner, name, _like(current, copied(value)))


def _attributes(owner: object) -> list[tuple[str, Any]]:
    items = getattr(owner, "__dict__", {}).items()
    return [(name, value) for name, value in items if name not in _NEVER]


def _like(current: Any, value: Any) -> Any:
    """Returns a dict as a dict of the same class, such as a defaultdict, and other values as is."""
    if type(current) is dict or not (isinstance(current, dict) and isinstance(value, dict)):
        return value
    result = copy.copy(current)
    result.clear()
    result.update(value)
    return result


def _plain(value: Any) -> Any:
    return generator_state(value) if isinstance(value, Generators) else value


class _Mark(NamedTuple):
    """Is equal for equal values."""

    written: object
    arrays: list[object]
    nbytes: float  # of the arrays


def _mark(value: Any) -> _Mark | None:
    """Returns the mark of a value; None for one that is not saved."""
    if id(value) in _COMPARISON_NAMES:
        return _Mark(id(value), [], math.inf)  # nobody changes it
    arrays: list[np.ndarray] = []
    try:
        written = repr(encode(_plain(value), arrays))
    except NotPlainError:
        return None
    return _Mark(written, list(map(_mark_of_array, arrays)), sum(each.nbytes for each in arrays))


def _mark_of_array(array: np.ndarray) -> object:
    part = array
    if array.nbytes > _COMPARED and array.ndim:
        most = max(_COMPARED * len(array) // array.nbytes, 1)
        part = array[:: -(-len(array) // most)]
    contents = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return array.shape, array.dtype.name, zlib.crc32(contents.data)
