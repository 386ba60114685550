"""Many micro-batches, one gradient.

    accumulated = zeros
    for micro_batch in update:                          # in order: the sum is the same in any loop
        accumulated = add(accumulated, gradient(micro_batch), coefficient)
    gradient = finish(accumulated, scale)

`auto` and `mean` weigh a micro-batch by its rows (`coefficient`: its rows over those of the first)
and divide by the sum of these weights, so an update that ends with a smaller batch still equals one
big batch. Where losses divide by a number of the data, `auto` weighs by that as well: the weights
are added up behind the gradients, as those of `LOSS_WEIGHT`. `sum` adds the gradients unchanged:
each is already a mean over its own rows.
`running_mean` moves the accumulated value towards the n-th gradient by a `coefficient` of 1 / n,
so that it never exceeds the gradients.

Scales and histories of float8 layers are no gradients: Keras overwrites the variable with them. As
where Keras accumulates, the largest of an update counts, without any weight.

Each replica accumulates its own gradients. Their sums are divided by the steps of all replicas,
or, where the reduction ends in `then_sum`, by the steps of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import keras
from jax.typing import DTypeLike

from millrace.base.options import Accumulation, Reduction
from millrace.errors import OptionError
from millrace.programs.plan import Plan
from millrace.programs.steps.scopes import ACCUMULATION

Gradients: TypeAlias = list[jax.Array]
Factor: TypeAlias = float | jax.Array
AccumulatorDtypeLike: TypeAlias = DTypeLike | Callable[[keras.Variable], DTypeLike | None] | None


@dataclass(frozen=True, slots=True)
class LossWeight:
    """The place of the weights of micro-batches behind the gradients, like a variable's."""

    path = "loss weight"
    shape = ()
    dtype = "float32"
    overwrite_with_gradient = False


LOSS_WEIGHT = LossWeight()
Accumulated: TypeAlias = keras.Variable | LossWeight


def accumulated_variables(model: keras.Model, plan: Plan) -> list[Accumulated]:
    """Returns the trainable variables of a model, and `LOSS_WEIGHT` where losses weigh."""
    return [*model.trainable_variables, *[LOSS_WEIGHT] * plan.weighs_losses]


def weighed(plan: Plan, gradients: Gradients, coefficient: Factor) -> tuple[Gradients, Factor]:
    """Returns gradients of a micro-batch to accumulate, and their coefficient.

    Args:
        plan: of the training.
        gradients: followed by the weight of the micro-batch, where losses weigh.
        coefficient: without that weight.
    """
    if not plan.weighs_losses:
        return gradients, coefficient
    *gradients, weight = gradients
    return [*gradients, jnp.ones_like(weight)], coefficient * weight


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The three functions of an accumulation, over lists in the order of the variables."""

    zeros: Callable[[], Gradients]
    add: Callable[[Gradients, Sequence[jax.Array], Factor], Gradients]
    finish: Callable[[Gradients, Factor], Gradients]


def make_accumulator(variables: Sequence[Accumulated], accumulation: Accumulation) -> Accumulator:
    """Builds the accumulator of trainable `variables`, of a whole model or of one stage.

    Where `LOSS_WEIGHT` is the last of them, `finish` divides by its sum, and leaves it out.

    Raises:
        OptionError: if the chosen dtype is unknown, or not a floating dtype.
    """
    dtypes = [accumulator_dtype(accumulation.dtype, variable) for variable in variables]
    overwrites = [variable.overwrite_with_gradient for variable in variables]
    weighs = bool(variables) and isinstance(variables[-1], LossWeight)

    @jax.named_scope(ACCUMULATION)
    def zeros() -> Gradients:
        return [
            jnp.zeros(variable.shape, dtype)
            for variable, dtype in zip(variables, dtypes, strict=True)
        ]

    running = accumulation.reduction.is_running

    @jax.named_scope(ACCUMULATION)
    def add(
        accumulated: Gradients, gradients: Sequence[jax.Array], coefficient: Factor
    ) -> Gradients:
        def added(a: jax.Array, g: jax.Array) -> jax.Array:
            # Two products: the difference of two numbers may be more than a float16 can hold.
            kept = a * _as(1 - coefficient, a) if running else a
            return kept + g.astype(a.dtype) * _as(coefficient, a)

        return [
            largest(a, g) if overwrite else added(a, g)
            for a, g, overwrite in zip(accumulated, gradients, overwrites, strict=True)
        ]

    @jax.named_scope(ACCUMULATION)
    def finish(accumulated: Gradients, scale: Factor) -> Gradients:
        *weights, total = accumulated if weighs else (*accumulated, None)
        if total is not None:  # 0 where no token of an update counts
            accumulated, scale = weights, jnp.where(total == 0, 0.0, 1 / total)
        # Scaled in the accumulator's dtype. The optimizer casts, and only after it has looked for
        # infinities: a sum of scaled gradients cast to float16 could overflow to infinity here.
        return [
            a if overwrite else a * _as(scale, a)
            for a, overwrite in zip(accumulated, overwrites, strict=False)
        ]

    return Accumulator(zeros, add, finish)


def largest(accumulated: jax.Array, gradient: jax.Array) -> jax.Array:
    """Returns the accumulated "gradient" of a variable that Keras overwrites with it."""
    return jnp.maximum(accumulated, gradient.astype(accumulated.dtype))


def accumulator_dtype(choice: AccumulatorDtypeLike, variable: Accumulated) -> jnp.dtype:
    """Returns the dtype in which the gradients of one variable are accumulated."""
    if isinstance(variable, LossWeight):
        return jnp.dtype(variable.dtype)
    chosen = choice(variable) if callable(choice) and not _is_dtype(choice) else choice
    if chosen is None or variable.overwrite_with_gradient:
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


def weight_of(reduction: Reduction, rows: int, first_rows: int, share: float = 1.0) -> float:
    """Returns the weight of a micro-batch of `rows` in an update that began with `first_rows`.

    Where rows do not count, that of a part of a batch is its share of it.
    """
    weighs = reduction in (Reduction.AUTO, Reduction.MEAN, Reduction.MEAN_THEN_SUM)
    return rows / first_rows if weighs else share


def coefficient_of(reduction: Reduction, base: Factor, before: int | jax.Array) -> Factor:
    """Returns the coefficient of a micro-batch.

    Args:
        reduction: how the accumulation combines gradients.
        base: weight of the micro-batch; of a running mean, the steps of the update before the call.
        before: micro-batches that the same replica has accumulated in the same call.
    """
    if not reduction.is_running:
        return base
    number = jnp.float32(before) if isinstance(before, jax.Array) else before
    return 1.0 / (base + number + 1)


def scale_of(reduction: Reduction, total_weight: float, replicas: int) -> float:
    """Returns the factor that turns the sum over replicas into the gradient of an update.

    Args:
        reduction: how the accumulation combines gradients.
        total_weight: sum of the weights of the micro-batches of all replicas.
        replicas: number of replicas.
    """
    match reduction:
        case Reduction.AUTO | Reduction.MEAN:
            return 1.0 / total_weight
        case Reduction.MEAN_THEN_SUM:
            return replicas / total_weight
        case Reduction.RUNNING_MEAN | Reduction.SUM_THEN_MEAN:
            return 1.0 / min(replicas, total_weight)  # each weighs 1
        case _:
            return 1.0


def _is_dtype(choice: object) -> bool:
    # np.float32 and jnp.float32 are callable, yet not functions of a variable.
    try:
        jnp.dtype(choice)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _as(number: Factor, like: jax.Array) -> jax.Array:
    return jnp.asarray(number, like.dtype)
