"""Plain Python values as JSON and arrays, and back. Nothing that is read is ever executed.

None, bool, int, str        as they are
float                       a number; {"float": "nan"} and the like, for those not in JSON
list                        a list
tuple, dict, bytes          {"tuple": [...]}, {"dict": [[key, value], ...]}, {"bytes": "base64"}
set, frozenset, deque       {"set": [...]}, {"frozenset": [...]}, {"deque": [longest, [...]]}
NumPy or JAX array          {"array": 3}, the index in a list of arrays
NumPy scalar                {"scalar": 3}, likewise
"""

import base64
import binascii
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np

from millrace.base.checkpoints.arrays import is_storable

WrittenValue = None | bool | int | float | str | list[Any] | dict[str, Any]

_DEEPEST = 50  # levels of values in values
_LONGEST = 10_000  # bits of an int: Python reads no longer ones from text
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class NotPlainError(TypeError):
    """A value is neither plain nor an array."""


def encode(value: object, arrays: list[np.ndarray], depth: int = 0) -> WrittenValue:
    """Returns a value as JSON has it, and adds its arrays to a list.

    Args:
        value: to be written.
        arrays: gets the arrays in it, which their owner may change: they are not copied.
        depth: levels of values around it.

    Raises:
        NotPlainError: if it holds an object of another type.
    """
    if depth > _DEEPEST:
        raise NotPlainError(f"values in values, {depth} levels deep")
    kind = type(value)
    if value is None or kind in (bool, str):
        return cast(WrittenValue, value)
    if kind is int:
        if cast(int, value).bit_length() > _LONGEST:
            raise NotPlainError(f"an int of {cast(int, value).bit_length():,} bits")
        return cast(int, value)
    if kind is float:
        number = cast(float, value)
        return number if math.isfinite(number) else {"float": str(number)}
    if kind is bytes:
        return {"bytes": base64.b64encode(cast(bytes, value)).decode()}
    if kind in (list, tuple, set, frozenset, deque):
        items = [encode(each, arrays, depth + 1) for each in cast(Iterable[object], value)]
        if kind is list:
            return items
        if kind is deque:
            return {"deque": [cast("deque[object]", value).maxlen, items]}
        # The order of a set differs between processes.
        return {kind.__name__: items if kind is tuple else sorted(items, key=str)}
    if isinstance(value, dict) and kind.__module__ in ("builtins", "collections"):
        pairs = cast(dict[object, object], value).items()
        return {"dict": [[encode(each, arrays, depth + 1) for each in pair] for pair in pairs]}
    if isinstance(value, np.ma.MaskedArray):
        raise NotPlainError("an array with a mask")
    if isinstance(value, np.generic) or (hasattr(value, "__array__") and hasattr(value, "dtype")):
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError) as error:  # a key of JAX, or an array that was donated
            raise NotPlainError(f"a value of type {kind.__module__}.{kind.__qualname__}") from error
        if not is_storable(array.dtype):
            raise NotPlainError(f"an array of dtype {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        arrays.append(array)
        return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}
    raise NotPlainError(f"a value of type {kind.__module__}.{kind.__qualname__}")


def decode(value: object, arrays: Sequence[np.ndarray], depth: int = 0) -> Any:
    """Returns the value that `encode` has written.

    Raises:
        ValueError: if no value is written like this.
    """
    if depth > 3 * _DEEPEST:  # a dict is written as a list of lists
        raise ValueError("values in values, too deep")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [decode(each, arrays, depth + 1) for each in cast(list[object], value)]
    if isinstance(value, dict) and len(cast(dict[str, object], value)) == 1:
        [(kind, content)] = cast(dict[str, object], value).items()
        try:
            if isinstance(content, list):
                return _CONTAINERS[kind](decode(content, arrays, depth + 1))
            return _SINGLE[kind](content, arrays)
        except (KeyError, TypeError, OverflowError, binascii.Error) as error:
            raise ValueError(f"no {kind[:80]} is written as {str(content)[:80]}") from error
    raise ValueError(f"no value is written as {str(cast(object, value))[:80]}")


def _array(content: Any, arrays: Sequence[np.ndarray]) -> np.ndarray:
    if not 0 <= content < len(arrays):
        raise ValueError(f"there is no array {str(content)[:80]} of {len(arrays)}")
    return np.require(arrays[content], requirements="W")  # copies what cannot be written


def _scalar(content: Any, arrays: Sequence[np.ndarray]) -> Any:
    array = _array(content, arrays)
    if array.ndim:
        raise ValueError(f"array {content} is no scalar")
    return array[()]


def _deque(parts: list[Any]) -> Any:
    longest, items = parts
    return deque(items, longest)


# Of lists of values that are decoded already, and of all other contents.
_CONTAINERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
    "deque": _deque,
}
_SINGLE: Mapping[str, Callable[[Any, Sequence[np.ndarray]], Any]] = {
    "bytes": lambda content, _: base64.b64decode(content, validate=True),
    "float": lambda content, _: _SPECIAL[content],
    "array": _array,
    "scalar": _scalar,
}


def host_copy(value: object) -> np.ndarray:
    """Returns the values of an array in host memory that no later step changes."""
    array = np.asarray(value)
    # From another device JAX has copied it; on the CPU it may be the memory that a step reuses.
    is_copy = isinstance(value, jax.Array) and array.flags.owndata
    return array if is_copy else np.array(array)


def copied(values: Any) -> Any:
    """Returns plain values with copies of their containers and of their arrays."""
    if isinstance(values, dict):
        return {key: copied(value) for key, value in values.items()}
    if isinstance(values, set | frozenset):
        return type(values)(values)
    if isinstance(values, deque):
        return deque(map(copied, values), values.maxlen)
    if isinstance(values, list | tuple):
        return type(values)(copied(value) for value in values)
    return np.array(values) if isinstance(values, np.ndarray) else values
