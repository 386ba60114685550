"""Taps: named values that a step carries out of its program.

    forward, under differentiation:   tap(key, value)   ...   tap(key, value)
    collecting(forward)           ->  result, Tapped             both are results of the trace

A value that is seen inside a trace must leave it as a result: kept on the side it would be of no
use after the trace, and a callback in a differentiated loop runs as often as JAX likes
(jax issue 16637). So whatever differentiates or recomputes a function has it collect, returns what
was collected next to the result, and taps it again outside.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

from millrace._compat.jax_tracing import trace_state
from millrace.errors import TapError
from millrace.threads.scoped_value import ScopedValue


@jax.tree_util.register_pytree_node_class
class Tapped:
    """Values by key, in the order in which they were tapped. The keys are not part of a trace."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: tuple[Hashable, ...] = (), values: tuple[Any, ...] = ()):
        self.keys, self.values = keys, values

    def __bool__(self) -> bool:
        return bool(self.keys)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yields keys with their values."""
        return zip(self.keys, self.values, strict=True)

    def __getitem__(self, key: Hashable) -> Any:
        return self.values[self.keys.index(key)]

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[Hashable, ...]]:
        """Returns the values as children, for JAX."""
        return self.values, self.keys

    @classmethod
    def tree_unflatten(cls, keys: tuple[Hashable, ...], values: Any) -> "Tapped":
        """Makes one of what a JAX function returned."""
        return cls(keys, tuple(values))


class _Collection:
    """What is tapped within one trace."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.trace = trace_state()
        self.values: dict[Hashable, Any] = {}


_collection = ScopedValue[_Collection | None](None)


def tap(key: Hashable, value: Any) -> None:
    """Carries `value`, any tree of arrays, out of the program that is being traced.

    Args:
        key: tells values apart; a queue, or the name of a tensor.
        value: may be a traced one. Gradients do not flow back through what is carried out.

    Raises:
        TapError: if no program is being traced, if this one has tapped the key already, or if
            the value belongs to a loop or a function inside the step, which cannot give it away.
    """
    collection = _collection.get()
    if collection is None:
        raise TapError(
            f"{key!r} was to take a value, and no program is being traced that could carry one "
            "out. Enqueue inside of a layer or an optimizer of a model that a strategy runs, or "
            "in the body of millrace.repeat()."
        )
    if not collection.keeps:
        collection.values[key] = None
        return
    if not belongs_here():
        raise TapError(
            f"{key!r} was to take a value from inside a loop or a compiled function within the "
            "step, of which only the results leave it. Enqueue the value after the loop, or tap "
            "the layer that returns it."
        )
    if key in collection.values:
        raise TapError(
            f"{key!r} takes one value in each program, and got a second one. Enqueue both as one "
            "tuple or dict, or use a queue for each."
        )
    collection.values[key] = jax.tree.map(jax.lax.stop_gradient, value)


def is_open() -> bool:
    """Whether something in this thread collects values."""
    return _collection.get() is not None


def is_tapped(key: Hashable) -> bool:
    """Whether the program that is being traced has tapped `key` already."""
    collection = _collection.get()
    return collection is not None and key in collection.values


def belongs_here() -> bool:
    """Whether values of the current trace can be tapped: not those of a loop in a step, say."""
    collection = _collection.get()
    return collection is not None and collection.trace == trace_state()


def collecting(function: Callable[..., Any], keeps: bool = True) -> Callable[..., Any]:
    """Makes a function return `(result, Tapped)`.

    Args:
        function: anything that taps values when it is called, in the trace of its caller.
        keeps: False collects the keys only, with None as their values: for a first look at a
            function that might tap values where they cannot leave it.
    """

    def collected(*args: Any, **kwargs: Any) -> Any:
        with collection_open(keeps) as values:
            result = function(*args, **kwargs)
        return result, Tapped(tuple(values), tuple(values.values()))

    return collected


@contextmanager
def collection_open(keeps: bool = True) -> Iterator[dict[Hashable, Any]]:
    """Yields a dict that fills with what is tapped inside, in this thread."""
    collection = _Collection(keeps)
    with _collection.bound_to(collection):
        yield collection.values


def tap_again(tapped: Tapped) -> None:
    """Taps in this trace what was collected in one inside."""
    for key, value in tapped.items():
        tap(key, value)


def value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Is `jax.value_and_grad(function, has_aux=True)`, through which taps pass."""

    def with_aux(*args: Any, **kwargs: Any) -> Any:
        (loss, aux), tapped = collecting(function)(*args, **kwargs)
        return loss, (aux, tapped)

    differentiated = jax.value_and_grad(with_aux, has_aux=True)

    def value_and_gradients(*args: Any, **kwargs: Any) -> Any:
        (loss, (aux, tapped)), gradients = differentiated(*args, **kwargs)
        tap_again(tapped)
        return (loss, aux), gradients

    return value_and_gradients


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Is `jax.checkpoint(function)`, through which taps pass: once, however often it is run."""

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not belongs_here():
            return jax.checkpoint(function)(*args, **kwargs)
        result, tapped = jax.checkpoint(collecting(function))(*args, **kwargs)
        tap_again(tapped)
        return result

    return recomputed
