"""A loop over `tf.range`, run as a native loop.

    iteration number, carried values -> body -> carried values
    next(iterator) in the body       -> the element that the native loop gives to the iteration

Only the body knows the iterator: it is first traced without one, up to its call of `next()`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from millrace import repeat
from millrace.errors import DTypeError, LoopError
from millrace.extend import OnHost, arguments_of, as_array, current_scope, is_tracing, look_at
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.computed_losses import with_losses
from millrace_ipu.tensorflow.iterators import (
    DeviceIterator,
    ElementNeeded,
    IterationElement,
    drawing_from,
)

RangeNumber: TypeAlias = int | jax.Array  # a Python number, or computed in the program


class Undefined:
    """Marks a name that has no value yet."""

    def __repr__(self) -> str:
        return "a name without a value"


UNDEFINED = Undefined()


def for_range(
    body: Callable[..., Sequence[object]],
    limits: Sequence[RangeNumber | np.generic],
    thunks: Sequence[Callable[[], object]],
    location: str,
) -> tuple[Any, ...]:
    """Runs a loop, and returns the carried values after its last iteration.

    Args:
        body: called with `i` and the carried values; returns the new carried values as a tuple.
        limits: the arguments of `tf.range`.
        thunks: return the initial values, or raise NameError for names without a value.
        location: file and line, for messages.
    """
    start, number, step = _iterations(limits)
    values = [defined(thunk) for thunk in thunks]
    iterator: DeviceIterator | None = None
    while True:
        loop = _RangeLoop(body, start, step, iterator, location)
        try:
            return loop.run(number, values)
        except ElementNeeded as needed:
            iterator = needed.iterator
        except OnHost:
            if is_tracing() or current_scope() is not None:
                raise
            for index in range(int(number)):  # a pipeline in the body: the host drives the loop
                values = list(body(np.int32(start + index * step), *values))
            return tuple(values)


def defined(thunk: Callable[[], object]) -> Any:
    """Returns the value of a name; `UNDEFINED` if it has none."""
    try:
        value = thunk()
    except NameError:
        return UNDEFINED
    return UNDEFINED if value is None else value


class _RangeLoop:
    """The loop, with the iterator that its body draws from."""

    def __init__(
        self,
        body: Callable[..., Sequence[object]],
        start: RangeNumber,
        step: RangeNumber,
        iterator: DeviceIterator | None,
        location: str,
    ):
        self._body, self._start, self._step = body, start, step
        self._iterator, self._location = iterator, location

    def run(self, number: RangeNumber, values: list[object]) -> tuple[Any, ...]:
        trees = [self._array(value) for value in self._with_zeros(values)]
        infeed = None if self._iterator is None else self._iterator.queue
        result = repeat(number, with_losses(self._iteration), [jnp.int32(0), *trees], infeed)
        return tuple(result[1:]) if trees else ()

    def _iteration(self, index: jax.Array, *args: ArrayTree, **named: ArrayTree) -> list[Any]:
        """One iteration, called by the native loop with carried values and items of the element."""
        count = self._body.__code__.co_argcount - 1  # type: ignore[attr-defined]
        element = self._element(args[count:], named)
        with drawing_from(IterationElement(self._iterator, element, self._location)):
            carried = self._body(self._start + index * self._step, *args[:count])
        return [index + 1, *map(self._array, carried)]

    def _element(self, items: tuple[ArrayTree, ...], named: Mapping[str, ArrayTree]) -> ArrayTree:
        if named or self._iterator is None:
            return named
        spec = self._iterator.queue.block().batches
        return type(spec)(items) if type(spec) in (tuple, list) else items[0]

    def _with_zeros(self, values: list[object]) -> list[object]:
        """Returns the initial values; names that are first bound in the loop start as zeros."""
        if not any(value is UNDEFINED for value in values):
            return values
        element = () if self._iterator is None else self._iterator.queue.block().batches
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), element)
        items, named = arguments_of([], zeros)

        def look() -> list[Any]:
            initial = [None if value is UNDEFINED else self._array(value) for value in values]
            return self._iteration(jnp.int32(0), *initial, *items, **named)[1:]

        specs = look_at(look).result
        zeros = [jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec) for spec in specs]
        return [zero if v is UNDEFINED else v for v, zero in zip(values, zeros, strict=True)]

    def _array(self, value: object) -> Any:
        try:
            return jax.tree.map(as_array, value)
        except DTypeError as error:
            raise LoopError(
                f"The loop in {self._location} over tf.range() carries a value from one iteration "
                f"to the next that is not an array: {value!r} of type {type(value).__name__}. "
                "Create it before the loop, or loop over Python's range()."
            ) from error


def _iterations(limits: Sequence[RangeNumber | np.generic]) -> tuple[Any, Any, Any]:
    """Returns the start, the number of iterations and the step, from arguments of `tf.range`."""
    start, limit, step = ((0, *limits, 1) if len(limits) == 1 else (*limits, 1))[:3]
    bounds: Any = [int(x) if isinstance(x, int | np.generic) else x for x in (start, limit, step)]
    start, limit, step = bounds
    if all(isinstance(x, int) for x in bounds):
        return start, len(range(start, limit, step)), step
    number = -((start - limit) // step)
    return start, jnp.maximum(number, 0).astype(jnp.int32), step
