"""Private Keras: the statistics of a `BatchNormalization`, marked in a traced step.

`moments_marked`   while it is open, an equation stands for the place where a layer has the mean and
                   the variance of its batch: they go in, with the number of values behind them, and
                   come out. Whoever takes the step apart may let those of more batches come out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.extend.core import Primitive
from jax.interpreters import batching

from millrace._compat.jaxpr import Equation, inner_equations
from millrace._compat.patch_table import BATCH_MOMENTS
from millrace._compat.patches import held, replace
from millrace.threads.scoped_value import ScopedValue

# (mean, variance, number of values) -> (mean, variance), all of the same shape. A parameter
# `epsilon` is what Keras adds to the number before it divides by it.
MOMENTS = "millrace_batch_moments"

_primitive = Primitive(MOMENTS)
_primitive.multiple_results = True
_is_marking = ScopedValue(False)


@_primitive.def_impl
def _computed(
    mean: jax.Array, variance: jax.Array, count: jax.Array, *, epsilon: float
) -> list[jax.Array]:
    del count, epsilon
    return [mean, variance]


@_primitive.def_abstract_eval
def _typed(mean: Any, variance: Any, count: Any, *, epsilon: float) -> list[Any]:
    del count, epsilon
    return [mean, variance]


def _batched(
    values: Sequence[jax.Array], axes: Sequence[int | None], *, epsilon: float
) -> tuple[list[jax.Array], list[int]]:
    size = next(v.shape[a] for v, a in zip(values, axes, strict=True) if a is not None)
    moved = [
        jnp.broadcast_to(v, (size, *v.shape)) if a is None else jnp.moveaxis(v, a, 0)
        for v, a in zip(values, axes, strict=True)
    ]
    return _primitive.bind(*moved, epsilon=epsilon), [0, 0]


batching.primitive_batchers[_primitive] = _batched


@contextmanager
def moments_marked() -> Iterator[None]:
    """Marks the statistics of the batch in all steps that this thread traces in the block."""
    with held(), _is_marking.bound_to(True):
        replace(BATCH_MOMENTS, _marked)
        yield


def marks_moments(equation: Equation) -> bool:
    """Whether an equation stands for the statistics of a batch."""
    return equation.primitive is _primitive


def contains_moments(equation: Equation) -> bool:
    """Whether an equation within this one, such as in a loop, stands for such statistics."""
    return any(
        marks_moments(inner) or contains_moments(inner)
        for body in inner_equations(equation)
        for inner in body
    )


def _marked(original: Callable[..., Any]) -> Callable[..., Any]:
    def _moments(
        self: keras.layers.BatchNormalization, inputs: jax.Array, mask: jax.Array | None
    ) -> Any:
        mean, variance = original(self, inputs, mask)
        if not _is_marking.get():
            return mean, variance
        axis = self.axis % len(inputs.shape)
        reduced = tuple(k for k in range(len(inputs.shape)) if k != axis)
        epsilon = 0.0
        if mask is None:
            number = 1
            for k in reduced:
                number *= inputs.shape[k]
            count = jnp.full(mean.shape, number, mean.dtype)
        else:
            epsilon = keras.config.epsilon()
            valid = jnp.broadcast_to(jnp.expand_dims(mask, -1), inputs.shape)
            count = jnp.squeeze(valid.astype(bool).astype(mean.dtype).sum(reduced))
        return _primitive.bind(mean, variance, count, epsilon=epsilon)

    return _moments
