"""A step and an update, each with the values that it taps.

gradient_step(state, batch)   -> gradients, state, logs    and taps: one entry per micro-batch
update(state, gradients)      -> state                     and taps: one entry per update
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import keras

from millrace._compat.keras_optimizers import wrapped_chain
from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import Mode, Plan
from millrace.programs.steps.accumulate import Gradients
from millrace.programs.steps.state import State
from millrace.programs.steps.step import (
    PendingUpdate,
    apply_gradients,
    make_gradient_step,
    make_step,
)
from millrace.programs.taps.statistics import reduction_of
from millrace.programs.taps.taps import Tapped, collecting
from millrace.programs.taps.tensors import (
    activations_tapped,
    found_non_finite,
    loss_scale,
    packed,
    tap_gradients,
)

# (state, update to apply, halted so far) -> new state, taps, halted
TappedUpdate: TypeAlias = Callable[
    [State, PendingUpdate, jax.Array | None], tuple[State, Tapped, jax.Array | None]
]

# An optimizer with a method of this name receives the gradients of every micro-batch.
AFTER_COMPUTE = "tap_micro_gradients"


def tapping_optimizer(model: keras.Model) -> Any:
    """Returns the model's optimizer, or one it wraps, that has this method; None if none has."""
    optimizers = wrapped_chain(getattr(model, "optimizer", None))  # loss scaling wraps one
    return next((each for each in optimizers if hasattr(each, AFTER_COMPUTE)), None)


def make_tapped_step(model: keras.Model, plan: Plan) -> Callable[..., tuple[Any, Tapped]]:
    """Returns a step with its taps: the gradient step when training, Keras's own otherwise."""
    trains = plan.mode is Mode.TRAIN
    step: Any = make_gradient_step(model, plan) if trains else make_step(model, plan.mode)

    def run(state: State, batch: ArrayTree, earlier: Sequence[Gradients] = ()) -> Any:
        if not trains:
            with activations_tapped(model):
                return step(state, batch)
        due = is_due(model, state, plan.taps.every)
        with activations_tapped(model, plan.taps, due):
            gradients, new, logs = step(state, batch, earlier)
        own = gradients[: len(state.trainable)]  # without a weight behind them
        tap_micro_gradients(model, plan, own, due, loss_scale(model, state.optimizer))
        return gradients, new, logs

    def tapped(
        state: State, batch: ArrayTree, earlier: Sequence[Gradients] = ()
    ) -> tuple[Any, Tapped]:
        result, values = collecting(run)(state, batch, earlier)
        return result, packed(values)

    return tapped


def make_tapped_update(model: keras.Model, plan: Plan) -> TappedUpdate:
    """Returns the update with its taps, and whether training has halted at it or before.

    Its last argument says whether training halted before it: a halt is final. It and the last
    result are None where the plan does not ask for halts.
    """

    def run(state: State, update: PendingUpdate) -> State:
        tap_update(model, plan, state, update.gradients)
        return apply_gradients(model, plan, state, update)

    def tapped(
        state: State, update: PendingUpdate, halted: jax.Array | None
    ) -> tuple[State, Tapped, jax.Array | None]:
        new, values = collecting(run)(state, update)
        values = packed(values)
        if halted is not None:
            halted = halted | found_non_finite(values)
        return new, values, halted

    return tapped


def tap_update(model: keras.Model, plan: Plan, state: State, gradients: Gradients) -> None:
    """Taps the requested statistics of the gradients that are about to be applied."""
    due = is_due(model, state, plan.taps.every)
    scale = loss_scale(model, state.optimizer)
    reduce = reduction_of(plan.taps)
    tap_gradients(model, gradients, plan.taps.gradients, due, scale, reduce)


def tap_micro_gradients(
    model: keras.Model,
    plan: Plan,
    gradients: Gradients,
    due: jax.Array | None,
    scale: jax.Array | None,
) -> None:
    """Taps the requested statistics of the gradients of one micro-batch."""
    reduce = reduction_of(replace(plan.taps, norms=False))
    tap_gradients(model, gradients, plan.taps.micro_gradients, due, scale, reduce)
    optimizer = tapping_optimizer(model)
    if optimizer is not None:
        optimizer.tap_micro_gradients(gradients, model.trainable_variables)


def is_due(model: keras.Model, state: State, every: int) -> jax.Array | None:
    """Returns whether statistics of this update are wanted; None if those of all updates are."""
    if every == 1:
        return None
    return jnp.asarray(state.optimizer[update_count(model.optimizer)]) % every == 0


def update_count(optimizer: keras.optimizers.Optimizer) -> int:
    """Returns the index of the value of an optimizer that counts updates."""
    return next(k for k, v in enumerate(optimizer.variables) if v is optimizer.iterations)
