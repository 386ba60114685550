"""The update of a pipelined model, traced once for all weights and cut by stage."""

from collections.abc import Sequence, Sized
from dataclasses import replace

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import trace
from millrace.errors import ModelError
from millrace.programs.plan import Plan
from millrace.programs.steps.accumulate import LOSS_WEIGHT, make_accumulator
from millrace.programs.steps.state import State
from millrace.programs.steps.step import PendingUpdate, apply_gradients
from millrace.programs.taps.taps import collecting
from millrace.run.pipelines.programs.split import Arrays, Slot, Split
from millrace.run.pipelines.programs.split_update import SplitUpdate, split_update
from millrace.run.pipelines.programs.stage_taps import (
    halted_unless_finite,
    homes_of,
    tap_stage_update,
)


def contributions(split: Split) -> list[tuple[int, int]]:
    """Returns (stage, weight) for each gradient that the stages accumulate, in a fixed order.

    A weight used by several stages has a gradient at each of them. Weight -1 stands for the weights
    of micro-batches.
    """
    return [(stage.index, weight) for stage in split.stages for weight in stage.accumulated]


def split_stage_update(model: keras.Model, plan: Plan, split: Split, specs: State) -> SplitUpdate:
    """Traces one update and cuts it.

    Args:
        model: a compiled Keras model.
        plan: of the mode and batch of one replica.
        split: its stages.
        specs: of the state of one replica.
    """
    taps = plan.taps
    weighs = [LOSS_WEIGHT] * (split.loss_values is not None)
    accumulator = make_accumulator([*model.trainable_variables, *weighs], plan.accumulation)
    zeros = jax.eval_shape(accumulator.zeros)
    gradient_homes = contributions(split)
    _check_shared(model, gradient_homes)
    trainable, optimizer = list(specs.trainable), list(specs.optimizer)
    last = len(split.stages) - 1

    def update(
        gradients: Arrays, optimizer: Arrays, scale: jax.Array, trainable: Arrays
    ) -> tuple[Arrays, Arrays]:
        sums: list[jax.Array | None] = [None] * len(zeros)
        for (_, weight), gradient in zip(gradient_homes, gradients, strict=True):
            total = sums[weight]
            sums[weight] = gradient if total is None else total + gradient
        whole = [
            jnp.zeros(z.shape, z.dtype) if s is None else s
            for s, z in zip(sums, zeros, strict=True)
        ]
        whole = accumulator.finish(whole, scale)
        tap_stage_update(model, split, taps, whole, optimizer)
        state = State(tuple(trainable), optimizer=tuple(optimizer))
        new = apply_gradients(model, plan, state, PendingUpdate(whole), specs)
        results = list(new.optimizer), list(new.trainable)
        old = list(optimizer), list(trainable)
        if taps.stops:
            results = halted_unless_finite(model, whole, taps.gradients, results, old)
        return results

    gradients = [zeros[weight] for _, weight in gradient_homes]
    scale = jax.ShapeDtypeStruct((), jnp.float32)
    graph, (_, tapped) = trace(collecting(update), gradients, optimizer, scale, trainable)
    inputs = [
        *_slots("gradient", gradients),
        *_slots("optimizer", optimizer),
        Slot("scale", 0),
        *_slots("trainable", trainable),
    ]
    outputs = [
        *_slots("optimizer", optimizer),
        *_slots("trainable", trainable),
        *_slots("tap", jax.tree.leaves(tapped)),
    ]
    homes = {slot: split.owners.get(slot, last) for slot in _slots("trainable", trainable)}
    for number, (_, weight) in enumerate(gradient_homes):
        if weight >= 0:  # else all stages take it, as they take the scale
            homes[Slot("gradient", number)] = homes[Slot("trainable", weight)]
    homes.update(homes_of(tapped))
    return replace(split_update(graph, inputs, outputs, homes, last), taps=tapped)


def _check_shared(model: keras.Model, gradient_homes: Sequence[tuple[int, int]]) -> None:
    """Refuses scales of float8 layers that several stages use.

    Keras adds up the changes of all calls in a micro-batch, and takes the largest of these sums.
    """
    for weight, variable in enumerate(model.trainable_variables):
        stages = [stage for stage, each in gradient_homes if each == weight]
        if variable.overwrite_with_gradient and len(stages) > 1:
            raise ModelError(
                f"Variable {variable.path!r} is overwritten with its gradient, as scales of float8 "
                f"layers are, and is used by the stages {stages}. Its gradients are added up in "
                "each micro-batch, and stages add theirs up once in an update. Call the layer that "
                "it belongs to on one stage only, or use a layer of its own for each."
            )


def _slots(role: str, values: Sized) -> list[Slot]:
    return [Slot(role, index) for index in range(len(values))]
