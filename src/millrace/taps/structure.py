"""Trees of arrays whose dicts keep the order in which they were written.

JAX sorts the keys of a dict when it takes a tree apart. What comes out of a queue has the order in
which it went in, so dicts travel as `Ordered`, a tree node that remembers its keys.
"""

from typing import Any

import jax


@jax.tree_util.register_pytree_node_class
class Ordered:
    """The items of a dict, in their order."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: tuple[Any, ...], values: tuple[Any, ...]):
        self.keys, self.values = keys, values

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the values as children, for JAX."""
        return self.values, self.keys

    @classmethod
    def tree_unflatten(cls, keys: tuple[Any, ...], values: Any) -> "Ordered":
        """Makes one of what a JAX function returned."""
        return cls(keys, tuple(values))


def ordered(value: Any) -> Any:
    """Returns a tree with each dict replaced by an `Ordered`."""
    if isinstance(value, dict):
        return Ordered(tuple(value), tuple(ordered(item) for item in value.values()))
    if isinstance(value, list | tuple):
        return _like(value, [ordered(item) for item in value])
    return value


def plain(value: Any) -> Any:
    """Returns a tree with each `Ordered` replaced by a dict."""
    if isinstance(value, Ordered):
        return {k: plain(v) for k, v in zip(value.keys, value.values, strict=True)}
    if isinstance(value, list | tuple):
        return _like(value, [plain(item) for item in value])
    return value


def _like(value: Any, items: list[Any]) -> Any:
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*items)
    return tuple(items) if isinstance(value, tuple) else list(items)
