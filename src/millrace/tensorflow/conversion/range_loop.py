"""A loop over `tf.range`, as a native loop.

    turn number, carried values -> body -> carried values
    next(iterator) in the body  -> the element that the native loop gives the turn

Which iterator that is only the body tells: it is traced without one, up to the call of `next()`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.errors import DTypeError, LoopError
from millrace.loops.body import arguments_of, as_array
from millrace.loops.host_driven import OnHost
from millrace.loops.repeat import repeat
from millrace.loops.scope import look_at
from millrace.tensorflow.iterators import DeviceIterator, Needed, TurnDraws, drawing


class Undefined:
    """Stands for a name that has no value yet."""

    def __repr__(self) -> str:
        return "a name without a value"


UNDEFINED = Undefined()


def for_range(
    body: Callable[..., Any], limits: list[Any], thunks: list[Callable[[], Any]], place: str
) -> tuple[Any, ...]:
    """Runs a loop, and returns the carried values after its last turn.

    Args:
        body: called with the turn's number and what is carried; returns the latter as a tuple.
        limits: the arguments of `tf.range`.
        thunks: return the carried values of the first turn, if they have any.
        place: file and line, for messages.
    """
    start, number, step = _turns(limits)
    values = [defined(thunk) for thunk in thunks]
    iterator: DeviceIterator | None = None
    while True:
        loop = _Loop(body, start, step, iterator, place)
        try:
            return loop.run(number, values)
        except Needed as needed:
            iterator = needed.iterator
        except OnHost:
            if is_tracing() or current_scope() is not None:
                raise
            for turn in range(int(number)):  # a pipeline in the body: the host drives the loop
                values = list(body(np.int32(start + turn * step), *values))
            return tuple(values)


def defined(thunk: Callable[[], Any]) -> Any:
    """Returns the value of a name; `UNDEFINED` if it has none."""
    try:
        value = thunk()
    except NameError:
        return UNDEFINED
    return UNDEFINED if value is None else value


class _Loop:
    """The loop, with the iterator that its body draws from."""

    def __init__(
        self, body: Any, start: Any, step: Any, iterator: DeviceIterator | None, place: str
    ):
        self._body, self._start, self._step = body, start, step
        self._iterator, self._place = iterator, place

    def run(self, number: Any, values: list[Any]) -> tuple[Any, ...]:
        trees = [self._array(value) for value in self._with_zeros(values)]
        infeed = None if self._iterator is None else self._iterator.queue
        result = repeat(number, self._turn, [jnp.int32(0), *trees], infeed)
        return tuple(result[1:]) if trees else ()

    def _turn(self, number: Any, *args: Any, **named: Any) -> list[Any]:
        """One turn as the native loop calls it: what is carried, then parts of the element."""
        count = self._body.__code__.co_argcount - 1
        element = self._element(args[count:], named)
        with drawing(TurnDraws(self._iterator, element, self._place)):
            new = self._body(self._start + number * self._step, *args[:count])
        return [number + 1, *map(self._array, new)]

    def _element(self, parts: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named or self._iterator is None:
            return named
        spec = self._iterator.queue.block().batches
        return type(spec)(parts) if type(spec) in (tuple, list) else parts[0]

    def _with_zeros(self, values: list[Any]) -> list[Any]:
        """Returns values of the first turn: those that no turn has made yet are zeros."""
        if not any(value is UNDEFINED for value in values):
            return values
        element = () if self._iterator is None else self._iterator.queue.block().batches
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), element)
        parts, named = arguments_of([], zeros)

        def look() -> Any:
            given = [None if value is UNDEFINED else self._array(value) for value in values]
            return self._turn(jnp.int32(0), *given, *parts, **named)[1:]

        specs = look_at(look).result
        made = [jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec) for spec in specs]
        return [m if v is UNDEFINED else v for v, m in zip(values, made, strict=True)]

    def _array(self, value: Any) -> Any:
        try:
            return jax.tree.map(as_array, value)
        except DTypeError as error:
            raise LoopError(
                f"The loop in {self._place} over tf.range() carries a value from turn to turn that "
                f"is no array: {value!r} of type {type(value).__name__}. Make it before the loop, "
                "or loop over Python's range()."
            ) from error


def _turns(limits: list[Any]) -> tuple[Any, Any, Any]:
    """Returns the first number, how many there are, and the step, of what `tf.range` was given."""
    start, limit, step = ((0, *limits, 1) if len(limits) == 1 else (*limits, 1))[:3]
    parts = [int(x) if isinstance(x, int | np.generic) else x for x in (start, limit, step)]
    start, limit, step = parts
    if all(isinstance(x, int) for x in parts):
        return start, len(range(start, limit, step)), step
    number = -((start - limit) // step)
    return start, jnp.maximum(number, 0).astype(jnp.int32), step
