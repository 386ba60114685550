"""The state of an object: its attributes of plain values and arrays that have changed.

    begin = ObjectState(callback)     when training begins
    begin.changes()                   what has changed since, to be saved
    begin.restore(changes)            in another process, which has begun in the same way

So a callback or a data set needs no methods of its own to be saved, and what its owner has chosen
(a patience, a path) is that of the program that runs, not of the one that was saved.
"""

import copy
import random
import zlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from millrace.base.checkpoints.plain_values import NotPlainError, copied, decode, encode
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


class ObjectState:
    """The attributes of an object, and what they were at one time."""

    def __init__(self, owner: object):
        self.owner = owner
        self._begin = {name: _mark(value) for name, value in _attributes(owner)}
        self._values = {name: _small_copy(value) for name, value in _attributes(owner)}

    def changes(self) -> dict[str, Any]:
        """Returns the attributes that have another value now, as plain values and arrays."""
        changed: dict[str, Any] = {}
        for name, value in _attributes(self.owner):
            mark = _mark(value)
            if mark is not None and mark != self._begin.get(name):
                function = _COMPARISON_NAMES.get(id(value))
                changed[name] = [_plain(value)] if function is None else {"function": function}
        return changed

    def restore(self, changes: Mapping[str, Any], resets: bool = True) -> None:
        """Sets attributes to values that `changes` has returned, and all others to their first.

        Args:
            changes: returned by `changes`.
            resets: False leaves those that are not among the changes as they are. So are, in any
                case, those with arrays of more than 16 MiB.

        Raises:
            CheckpointError: if it has not.
        """
        try:
            self._restore({**(self._firsts(changes) if resets else {}), **changes})
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            kind = type(self.owner)
            raise CheckpointError(
                f"The checkpoint holds no state of {kind.__module__}.{kind.__qualname__}: "
                f"{error!r}. Use the class that was saved, or name another directory in "
                "Checkpoint(directory)."
            ) from error

    def _firsts(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the first values of attributes that have changed here, and not in `changes`."""
        firsts: dict[str, Any] = {}
        for name, value in _attributes(self.owner):
            first = self._values.get(name)
            if first is None or name in changes:
                continue
            if _mark(value) not in (None, self._begin[name]):
                written, arrays = first
                firsts[name] = [decode(written, [np.array(array) for array in arrays])]
        return firsts

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
            if isinstance(current, np.random.Generator):
                current.bit_generator.state = value
            elif isinstance(current, np.random.RandomState):
                current.set_state(value)
            elif isinstance(current, random.Random):
                current.setstate(value)
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


def _small_copy(value: Any) -> tuple[Any, list[np.ndarray]] | None:
    """Returns a copy as `encode` makes it; None for what is large, or is not saved."""
    arrays: list[np.ndarray] = []
    try:
        written = encode(_plain(value), arrays, copy=False)
    except NotPlainError:
        return None
    if sum(array.nbytes for array in arrays) > _COMPARED:
        return None
    return written, [np.array(array) for array in arrays]


def _plain(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return value.getstate() if isinstance(value, random.Random) else value


def _mark(value: Any) -> object:
    """Returns an object that is equal for equal values; None for values that are not saved."""
    if id(value) in _COMPARISON_NAMES:
        return id(value)
    arrays: list[np.ndarray] = []
    try:
        written = encode(_plain(value), arrays, copy=False)
    except NotPlainError:
        return None
    return repr(written), [_mark_of_array(array) for array in arrays]


def _mark_of_array(array: np.ndarray) -> object:
    part = array
    if array.nbytes > _COMPARED and array.ndim:
        most = max(_COMPARED * len(array) // array.nbytes, 1)
        part = array[:: -(-len(array) // most)]
    contents = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return array.shape, array.dtype.name, zlib.crc32(contents.data)
