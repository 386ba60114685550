"""Trees of arrays whose dicts keep the order in which they were written.

JAX sorts the keys of a dict when it flattens a tree, and keeps those of an `OrderedDict` in order.
Elements come out of a queue in the order in which they went in, so their dicts travel as these.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


def ordered(value: object) -> Any:
    """Returns a tree with each dict replaced by an `OrderedDict`."""
    if isinstance(value, dict):
        return OrderedDict((key, ordered(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return _like(value, [ordered(item) for item in value])
    return value


def plain(value: object) -> Any:
    """Returns a tree with each `OrderedDict` replaced by a dict."""
    if isinstance(value, OrderedDict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [plain(item) for item in value])
    return value


def _like(value: Sequence[object], items: list[object]) -> Any:
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*items)
    return tuple(items) if isinstance(value, tuple) else list(items)
