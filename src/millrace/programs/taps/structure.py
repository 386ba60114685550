"""Trees of arrays whose dicts keep the order in which they were written.

JAX sorts the keys of a dict when it flattens a tree, and keeps those of an `OrderedDict` in order.
Elements come out of a queue in the order in which they went in, so their dicts travel as these.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any


def ordered(value: object) -> Any:
    """Returns a tree with each dict replaced by an `OrderedDict`."""
    return _with_dicts(value, OrderedDict)


def plain(value: object) -> Any:
    """Returns a tree with each `OrderedDict` replaced by a dict."""
    return _with_dicts(value, dict)


def _with_dicts(value: Any, kind: Callable[[dict[Any, Any]], object]) -> Any:
    if isinstance(value, dict):
        return kind({key: _with_dicts(item, kind) for key, item in value.items()})
    if not isinstance(value, list | tuple):
        return value
    items = [_with_dicts(item, kind) for item in value]
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*items)
    return tuple(items) if isinstance(value, tuple) else items
