"""The update of a pipelined model, traced once for all weights and cut by stage."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import keras

from millrace._compat.jaxpr import trace
from millrace.options import NO_TAPS, Accumulation, TapRequest
from millrace.pipelines.programs.split import Slot, Split
from millrace.pipelines.programs.split_update import SplitUpdate, split_update
from millrace.pipelines.programs.stage_taps import halted_unless_finite, homes_of, tap_stage_update
from millrace.steps.accumulate import make_accumulator
from millrace.steps.update import applying_prepared
from millrace.taps.taps import collecting


def contributions(split: Split) -> list[tuple[int, int]]:
    """Returns (stage, weight) for each gradient that the stages accumulate, in a fixed order.

    A weight used by several stages has one at each of them.
    """
    return [(stage.index, weight) for stage in split.stages for weight in stage.trainable]


def split_stage_update(
    model: keras.Model,
    split: Split,
    trainable: Any,
    optimizer: Any,
    accumulation: Accumulation,
    taps: TapRequest = NO_TAPS,
) -> SplitUpdate:
    """Traces one update and cuts it.

    Args:
        model: a compiled Keras model.
        split: its stages.
        trainable: specs of the weights.
        optimizer: specs of the optimizer's values.
        accumulation: how gradients were added up.
        taps: which of them have their statistics tapped before they are applied.
    """
    accumulator = make_accumulator(model.trainable_variables, accumulation)
    zeros = jax.eval_shape(accumulator.zeros)
    made = contributions(split)
    last = len(split.stages) - 1

    def update(gradients: Any, optimizer: Any, scale: Any, trainable: Any) -> Any:
        sums: list[Any] = [None] * len(zeros)
        for (_, weight), gradient in zip(made, gradients, strict=True):
            sums[weight] = gradient if sums[weight] is None else sums[weight] + gradient
        whole = [
            jnp.zeros(z.shape, z.dtype) if s is None else s
            for s, z in zip(sums, zeros, strict=True)
        ]
        whole = accumulator.finish(whole, scale)
        tap_stage_update(model, split, taps, whole, optimizer)
        with applying_prepared():
            new, slots = model.optimizer.stateless_apply(list(optimizer), whole, list(trainable))
        new = [n.astype(old.dtype) for n, old in zip(new, trainable, strict=True)]
        results, old = (list(slots), new), (list(optimizer), list(trainable))
        if taps.stops:
            results = halted_unless_finite(model, whole, taps.gradients, results, old)
        return results

    gradients = [zeros[weight] for _, weight in made]
    scale = jax.ShapeDtypeStruct((), jnp.float32)
    given = (gradients, list(optimizer), scale, list(trainable))
    graph, (_, tapped) = trace(collecting(update), *given)
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
    for number, (_, weight) in enumerate(made):
        homes[Slot("gradient", number)] = homes[Slot("trainable", weight)]
    homes.update(homes_of(tapped))
    return replace(split_update(graph, inputs, outputs, homes, last), taps=tapped)


def _slots(role: str, values: Any) -> list[Slot]:
    return [Slot(role, index) for index in range(len(values))]
