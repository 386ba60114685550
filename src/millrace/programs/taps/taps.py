"""Taps: named values that a step carries out of its program.

    forward, under differentiation:   tap(key, value)   ...   tap(key, value)
    collecting(forward)           ->  result, Tapped             both are results of the trace

A value inside a trace must leave it as a result: stored elsewhere it could not be used after the
trace, and JAX may run a callback in a differentiated loop any number of times (jax issue 16637).
So code that differentiates or recomputes a function collects its taps, returns them next to the
result, and taps them again outside.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import jax

from millrace._compat.jax_tracing import trace_state
from millrace.base.pytrees import ArrayTree
from millrace.base.threads.scoped_value import ScopedValue
from millrace.errors import TapError

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
Aux = TypeVar("Aux")


@jax.tree_util.register_pytree_node_class
class Tapped:
    """Values by key, in the order in which they were tapped. The keys are not part of a trace."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: tuple[Hashable, ...] = (), values: tuple[object, ...] = ()):
        self.keys = keys
        self.values: tuple[Any, ...] = values

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
    def tree_unflatten(cls, keys: tuple[Hashable, ...], values: Iterable[object]) -> "Tapped":
        """Builds taps from the children and their keys, for JAX."""
        return cls(keys, tuple(values))


class _Collection:
    """The values tapped within one trace."""

    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps
        self.trace = trace_state()
        self.values: dict[Hashable, Any] = {}


_collection = ScopedValue[_Collection | None](None)


def tap(key: Hashable, value: ArrayTree) -> None:
    """Carries `value`, any tree of arrays, out of the program that is being traced.

    Args:
        key: identifies the value: a queue, or the name of a tensor.
        value: traced or not. Gradients do not flow back through tapped values.

    Raises:
        TapError: if no program is being traced, if this one has tapped the key already, or if
            the value belongs to a loop or a function inside the step, which it cannot leave.
    """
    collection = _collection.get()
    if collection is None:
        raise TapError(
            f"{key!r} cannot take a value here: no program is being traced that could carry it "
            "out. Enqueue in a layer or an optimizer of a model that a strategy runs, or in the "
            "body of millrace.repeat()."
        )
    if not collection.keeps:
        collection.values[key] = None
        return
    if not belongs_here():
        raise TapError(
            f"{key!r} cannot take a value from inside a loop or a compiled function within the "
            "step: only its results can leave it. Enqueue the value after the loop, or tap the "
            "layer that returns it."
        )
    if key in collection.values:
        raise TapError(
            f"{key!r} takes one value in each program, and received a second one. Enqueue both as "
            "one tuple or dict, or use a queue for each."
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
    """Whether values of the current trace can be tapped; those of a loop in a step cannot."""
    collection = _collection.get()
    return collection is not None and collection.trace == trace_state()


def collecting(
    function: Callable[Parameters, Returned], keeps: bool = True
) -> Callable[Parameters, tuple[Returned, Tapped]]:
    """Makes a function return `(result, Tapped)`.

    Args:
        function: taps values when it is called, in the trace of its caller.
        keeps: False collects only the keys, with None as their values: for finding out whether a
            function taps values in places that they cannot leave.
    """

    def collected(*args: Parameters.args, **kwargs: Parameters.kwargs) -> tuple[Returned, Tapped]:
        with collection_open(keeps) as values:
            result = function(*args, **kwargs)
        return result, Tapped(tuple(values), tuple(values.values()))

    return collected


@contextmanager
def collection_open(keeps: bool = True) -> Iterator[dict[Hashable, Any]]:
    """Yields a dict that collects the values tapped inside the block, in this thread."""
    collection = _Collection(keeps)
    with _collection.bound_to(collection):
        yield collection.values


def tap_again(tapped: Tapped) -> None:
    """Taps in this trace the values that were collected in an inner one."""
    for key, value in tapped.items():
        tap(key, value)


def value_and_grad(function: Callable[Parameters, tuple[jax.Array, Aux]]) -> Callable[..., Any]:
    """Returns `jax.value_and_grad(function, has_aux=True)`, extended to pass taps on."""

    def with_aux(
        *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> tuple[jax.Array, tuple[Aux, Tapped]]:
        (loss, aux), tapped = collecting(function)(*args, **kwargs)
        return loss, (aux, tapped)

    differentiated = jax.value_and_grad(with_aux, has_aux=True)

    def value_and_gradients(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Any:
        (loss, (aux, tapped)), gradients = differentiated(*args, **kwargs)
        tap_again(tapped)
        return (loss, aux), gradients

    return value_and_gradients


def checkpoint(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Returns `jax.checkpoint(function)`, extended to pass taps on, once for all its runs."""

    def recomputed(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        if not belongs_here():
            return jax.checkpoint(function)(*args, **kwargs)
        result, tapped = jax.checkpoint(collecting(function))(*args, **kwargs)
        tap_again(tapped)
        return result

    return recomputed
