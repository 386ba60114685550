"""Trees of arrays whose dicts keep the order in which they were written.

JAX sorts the keys of a dict when it takes a tree apart, and leaves those of an `OrderedDict` as
they are. What comes out of a queue has the order in which it went in, so dicts travel as these.
"""

from collections import OrderedDict
from typing import Any


def ordered(value: Any) -> Any:
    """Returns a tree with each dict replaced by an `OrderedDict`."""
    if isinstance(value, dict):
        return OrderedDict((key, ordered(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return _like(value, [ordered(item) for item in value])
    return value


def plain(value: Any) -> Any:
    """Returns a tree with each `OrderedDict` replaced by a dict."""
    if isinstance(value, OrderedDict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [plain(item) for item in value])
    return value


def _like(value: Any, items: list[Any]) -> Any:
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*items)
    return tuple(items) if isinstance(value, tuple) else list(items)
