"""Records as JSON, and back: frozen dataclasses of plain values.

dataclass      an object; a list in the order of its fields, if its class is in `ROWS`
tuple          a list
enum           its value
float          a number; "nan", "inf" and "-inf" for those that JSON does not have

Fields that a reader does not know are left out, and missing ones have their defaults: records of
another version can be read as long as the fields mean the same.
"""

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np

from millrace.base.records.memory import LiveBuffer
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan

Record = TypeVar("Record")
JsonValue = None | bool | int | float | str | list[Any] | dict[str, Any]

_LONGEST = 80  # characters of a value in a message
_LARGEST = 2**63 - 1  # whole number, as NumPy has it
ROWS = (ActivitySpan, LiveBuffer, Span)  # of which there are thousands


def encode(value: object) -> JsonValue:
    """Returns a record, or a value in one, as JSON has it."""
    if isinstance(value, enum.Enum):
        return encode(value.value)
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.generic | np.ndarray):
        return encode(cast(object, value.tolist()))
    if isinstance(value, ROWS):
        return [encode(getattr(value, name)) for name in _names(type(value))]
    if dataclasses.is_dataclass(value):
        return {name: encode(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        return {str(key): encode(each) for key, each in items}
    if isinstance(value, tuple | list):
        return [encode(each) for each in cast(list[object], value)]
    return str(value)  # of a path


def decode(kind: type[Record], values: object) -> Record:
    """Returns the record of a class that `encode` has written.

    Raises:
        ValueError: if the values are not of such a record.
    """
    try:
        return _decode(kind, values)
    except (AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return _one_of(arguments, value)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{short_text(value)} is none of {arguments}")
        return value
    if dataclasses.is_dataclass(kind):
        return _decode_record(cast(type[Any], kind), value)
    if origin is tuple:
        each, *others = arguments
        if others in ([], [...]):
            return tuple(_decode(each, item) for item in _listed(value))
        pairs = zip(arguments, _listed(value), strict=True)
        return tuple(_decode(item_kind, item) for item_kind, item in pairs)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise TypeError(f"object expected. Received: {type(value).__name__}")
        items = cast(dict[str, Any], value).items()
        return {key: _decode(arguments[1], item) for key, item in items}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return _plain(kind, value)


def _decode_record(kind: type[Any], value: Any) -> Any:
    names, hints = _names(kind), _hints(kind)
    if isinstance(value, list):
        value = dict(zip(names, cast(list[Any], value), strict=False))
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} expected. Received: {type(value).__name__}")
    given = cast(dict[str, Any], value)
    return kind(**{name: _decode(hints[name], given[name]) for name in names if name in given})


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    errors: list[Exception] = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _decode(kind, value)
            except (TypeError, ValueError, KeyError) as error:
                errors.append(error)
    raise TypeError(f"{short_text(value)} is none of {kinds}") from errors[-1]


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"list expected. Received: {type(value).__name__}")
    return cast(list[Any], value)


def _plain(kind: Any, value: Any) -> Any:
    if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > _LARGEST:
            raise ValueError(f"a number of {value.bit_length()} bits is not a count")
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind in (Any, object):
        return value
    raise TypeError(f"{getattr(kind, '__name__', kind)} expected. Received: {short_text(value)}")


def short_text(value: object) -> str:
    """Returns a value of JSON for a message: it may be long, or nested deeply."""
    if isinstance(value, list | dict):
        return type(cast(object, value)).__name__
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
