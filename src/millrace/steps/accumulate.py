"""Many micro-batches, one gradient.

    accumulated = zeros
    for micro_batch in update:                          # in order: the sum is the same in any loop
        accumulated = add(accumulated, gradient(micro_batch), coefficient)
    gradient = finish(accumulated, scale)

`mean` weighs a micro-batch by its rows (`coefficient`: its rows over those of the first) and
divides by the sum of these weights, so an update that ends with a smaller batch still equals one
big batch. `sum` adds the gradients as they are: each is already a mean over its own rows.
`running_mean` moves what is accumulated towards the n-th gradient by a `coefficient` of 1 / n, so
that it never is larger than the gradients are.

With replicas each accumulates for itself. Their sums are divided by the steps of all of them, or,
where the reduction ends in `then_sum`, by those of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace.errors import OptionError
from millrace.options import Accumulation, Reduction

Gradients = list[jax.Array]


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The three functions of an accumulation, over lists in the order of the variables."""

    zeros: Callable[[], Gradients]
    add: Callable[[Gradients, Any, Any], Gradients]
    finish: Callable[[Gradients, Any], Gradients]


def make_accumulator(variables: Sequence[Any], accumulation: Accumulation) -> Accumulator:
    """Builds the accumulator of trainable `variables`, all of a model's or those of one stage.

    Raises:
        OptionError: if the chosen dtype is none, or not a floating one.
    """
    dtypes = [accumulator_dtype(accumulation.dtype, variable) for variable in variables]
    # float8 layers store new scales in the "gradient" of a variable. They replace each other.
    replaces = [bool(getattr(variable, "overwrite_with_gradient", False)) for variable in variables]

    def zeros() -> Gradients:
        return [
            jnp.zeros(variable.shape, dtype)
            for variable, dtype in zip(variables, dtypes, strict=True)
        ]

    running = accumulation.reduction.is_running

    def add(accumulated: Gradients, gradients: Any, coefficient: Any) -> Gradients:
        def added(a: jax.Array, g: jax.Array) -> jax.Array:
            # Two products: the difference of two numbers may be more than a float16 can hold.
            kept = a * _as(1 - coefficient, a) if running else a
            return kept + g.astype(a.dtype) * _as(coefficient, a)

        return [
            g.astype(a.dtype) if replace else added(a, g)
            for a, g, replace in zip(accumulated, gradients, replaces, strict=True)
        ]

    def finish(accumulated: Gradients, scale: Any) -> Gradients:
        # Scaled in the accumulator's dtype; the optimizer casts, after it has looked for
        # infinities: casting a sum of scaled gradients to float16 first would make some.
        return [
            a if replace else a * _as(scale, a)
            for a, replace in zip(accumulated, replaces, strict=True)
        ]

    return Accumulator(zeros, add, finish)


def accumulator_dtype(choice: Any, variable: Any) -> jnp.dtype:
    """Returns the accumulator's dtype for one variable, a `keras.Variable`."""
    chosen = choice(variable) if callable(choice) and not _is_dtype(choice) else choice
    if chosen is None:
        return jnp.dtype(variable.dtype)
    try:
        dtype = jnp.dtype(keras.backend.standardize_dtype(chosen))
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"dtype={chosen!r} is not a dtype (for variable {variable.path}). Set a name such "
            "as 'float32', or a function that returns one for a variable."
        ) from error
    if not jnp.issubdtype(dtype, jnp.floating):
        raise OptionError(
            f"dtype={chosen!r} cannot hold gradients (for variable {variable.path}). Set a "
            "floating dtype such as 'float32'."
        )
    return dtype


def weight_of(reduction: Reduction, rows: int, first_rows: int) -> float:
    """Returns the weight of a micro-batch of `rows` in an update that began with another."""
    weighs = reduction in (Reduction.MEAN, Reduction.MEAN_THEN_SUM)
    return rows / first_rows if weighs else 1.0


def coefficient_of(reduction: Reduction, given: Any, before: Any) -> Any:
    """Returns the coefficient of a micro-batch.

    Args:
        reduction: of the accumulation.
        given: its weight; where means are running, the steps of the update before the call.
        before: micro-batches that the same replica has accumulated in the same call.
    """
    if not reduction.is_running:
        return given
    number = jnp.float32(before) if isinstance(before, jax.Array) else before
    return 1.0 / (given + number + 1)


def scale_of(reduction: Reduction, total_weight: float, replicas: int) -> float:
    """Returns what an update's sum over replicas is multiplied by.

    Args:
        reduction: of the accumulation.
        total_weight: of the micro-batches of all replicas.
        replicas: their number.
    """
    match reduction:
        case Reduction.MEAN:
            return 1.0 / total_weight
        case Reduction.MEAN_THEN_SUM:
            return replicas / total_weight
        case Reduction.RUNNING_MEAN | Reduction.SUM_THEN_MEAN:
            return 1.0 / min(replicas, total_weight)  # each weighs 1
        case _:
            return 1.0


def _is_dtype(choice: Any) -> bool:
    # np.float32 and jnp.float32 can be called, and are not functions of a variable.
    try:
        jnp.dtype(choice)
    except TypeError:
        return False
    return True


def _as(number: Any, like: jax.Array) -> jax.Array:
    return jnp.asarray(number, like.dtype)
