"""A step and an update, each with what they carry out of their program.

gradient_step(state, batch)   -> gradients, state, logs    and taps: one entry per micro-batch
update(state, gradients)      -> state                     and taps: one entry per update
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import keras

from millrace.errors import ModelError
from millrace.plan import Mode, Plan
from millrace.steps.accumulate import Gradients
from millrace.steps.state import State
from millrace.steps.step import make_gradient_step, make_step
from millrace.steps.update import apply_gradients
from millrace.taps.statistics import reduction_of
from millrace.taps.taps import Tapped, collecting
from millrace.taps.tensors import (
    activations_tapped,
    found_non_finite,
    loss_scale,
    packed,
    tap_gradients,
)

# An optimizer with a method of this name is shown the gradients of every micro-batch.
AFTER_COMPUTE = "tap_micro_gradients"


def tapping_optimizer(model: keras.Model) -> Any:
    """Returns the model's optimizer, or the one that it wraps, with that method; None without."""
    optimizer = getattr(model, "optimizer", None)
    while optimizer is not None and not hasattr(optimizer, AFTER_COMPUTE):
        optimizer = getattr(optimizer, "inner_optimizer", None)  # loss scaling wraps one
    return optimizer


def make_tapped_step(model: keras.Model, plan: Plan) -> Callable[[State, Any], tuple[Any, Tapped]]:
    """Returns a step with its taps: the gradient step when training, Keras's own otherwise.

    Raises:
        ModelError: for a `train_step` of the user's own: what it differentiates is out of reach.
    """
    trains = plan.mode is Mode.TRAIN
    if trains and type(model).train_step is not keras.Model.train_step:  # type: ignore[attr-defined]
        raise ModelError(
            f"{type(model).__name__} {model.name!r} overrides train_step(), and an outfeed layer, "
            "an OutfeedOptimizer or a callback carries values out of its step, which the strategy "
            "then differentiates itself. Override compute_loss() instead, or train without these."
        )
    step: Any = make_gradient_step(model, plan) if trains else make_step(model, plan.mode)

    def run(state: State, batch: Any) -> Any:
        if not trains:
            with activations_tapped(model):
                return step(state, batch)
        due = is_due(model, state, plan.taps.every)
        with activations_tapped(model, plan.taps, due):
            gradients, new, logs = step(state, batch)
        tap_micro_gradients(model, plan, gradients, due, loss_scale(model, state[2]))
        return gradients, new, logs

    def tapped(state: State, batch: Any) -> tuple[Any, Tapped]:
        result, found = collecting(run)(state, batch)
        return result, packed(found)

    return tapped


def make_tapped_update(
    model: keras.Model, plan: Plan
) -> Callable[[State, Gradients, Any], tuple[State, Tapped, Any]]:
    """Returns the update with its taps, and whether it was or had to be halted.

    Its last argument is the same of the updates before it: what halted stays so. `halted` is None
    where nobody asked for it.
    """

    def run(state: State, gradients: Gradients) -> State:
        tap_update(model, plan, state, gradients)
        return apply_gradients(model, state, gradients)

    def tapped(state: State, gradients: Gradients, halted: Any) -> tuple[State, Tapped, Any]:
        new, found = collecting(run)(state, gradients)
        found = packed(found)
        if halted is not None:
            halted = halted | found_non_finite(found)
        return new, found, halted

    return tapped


def tap_update(model: keras.Model, plan: Plan, state: State, gradients: Gradients) -> None:
    """Taps what is wanted of the gradients that are about to be applied."""
    due = is_due(model, state, plan.taps.every)
    scale = loss_scale(model, state[2])
    reduce = reduction_of(plan.taps)
    tap_gradients(model, gradients, plan.taps.gradients, due, scale, reduce)


def tap_micro_gradients(
    model: keras.Model, plan: Plan, gradients: Any, due: Any, scale: Any
) -> None:
    """Taps what is wanted of the gradients of one micro-batch."""
    reduce = reduction_of(replace(plan.taps, norms=False))
    tap_gradients(model, gradients, plan.taps.micro_gradients, due, scale, reduce)
    optimizer = tapping_optimizer(model)
    if optimizer is not None:
        optimizer.tap_micro_gradients(gradients, model.trainable_variables)


def is_due(model: keras.Model, state: State, every: int) -> Any:
    """Returns whether this update is one of those to look at; None if all are."""
    if every == 1:
        return None
    variables = model.optimizer.variables
    place = next(k for k, v in enumerate(variables) if v is model.optimizer.iterations)
    return jnp.asarray(state[2][place]) % every == 0
