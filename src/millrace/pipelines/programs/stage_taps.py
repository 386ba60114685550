"""What the programs of a pipeline carry out, each from the stage at which it arises.

    forward           statistics of activations, and what layers enqueue
    backward          statistics of the gradients of one micro-batch, and what the optimizer's
    (backward_weight) `tap_micro_gradients` enqueues of them
    final             statistics of the gradients of an update, and what the optimizer enqueues

Forward and update are traced whole and cut, so a value with leaves of several stages leaves in
several programs, and is put together again on the host (`pipelines/runtime/taps.py`). Gradients of
a micro-batch never are in one trace: each stage shows its own.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace.devices import REPLICA
from millrace.options import TapRequest
from millrace.pipelines.programs.split import Slot, Split
from millrace.pipelines.programs.split_update import UpdatePart
from millrace.plan import Mode, Plan
from millrace.records.tensors import Tensor
from millrace.steps.accumulate import Gradients
from millrace.steps.halting import unless
from millrace.steps.tapped_step import tapping_optimizer
from millrace.taps.statistics import reduction_of
from millrace.taps.taps import Tapped, collecting, tap
from millrace.taps.tensors import Rows, gradient_name, loss_scale, matches, tap_gradients

HALTED = "halted"  # key of whether an update was not applied; nobody has a queue of this name


@dataclass(frozen=True, slots=True)
class LossScale:
    """The key of what the optimizer had multiplied the loss of an update's micro-batches by.

    Backward does not know it, so gradients of micro-batches leave as they are, and their statistics
    are divided by it afterwards, on the devices of their stage.
    """

    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """What one program taps, as arrays `[1, ...]`: its statistics as one, then leaves."""

    stage: int
    trace: int | None  # stage whose own trace has tapped it; None: a trace of all stages
    rows: Rows | None
    leaves: tuple[tuple[Hashable, int], ...]  # key of a value, and the leaf's place in it
    trees: Mapping[Hashable, Any]  # structure of each value
    _order: tuple[int, ...]  # places of statistics and leaves among the values that are packed

    @property
    def number(self) -> int:
        """How many arrays it has."""
        return len(self.leaves) + (self.rows is not None)

    def packed(self, values: Sequence[Any]) -> list[Any]:
        """Returns the arrays of tapped values; runs in the program."""
        found = [values[place] for place in self._order]
        number = len(self.rows.tensors) if self.rows is not None else 0
        rows = [jnp.stack(found[:number])] if number else []
        return [value[None] for value in (*rows, *found[number:])]


class StageTaps:
    """What the programs of one plan carry out."""

    def __init__(self, model: keras.Model, plan: Plan, split: Split):
        self._model, self._options, self._split = model, plan.taps, split
        shows = bool(plan.taps.micro_gradients) or tapping_optimizer(model) is not None
        self._shows_gradients = plan.mode is Mode.TRAIN and shows
        self._of_backward: dict[int, Bundle | None] = {}

    @property
    def iterations(self) -> int:
        """Which value of the optimizer counts updates."""
        optimizer = self._model.optimizer
        return next(k for k, v in enumerate(optimizer.variables) if v is optimizer.iterations)

    def forward(self, index: int) -> Bundle | None:
        """What a stage's forward taps."""
        return bundle_of(self._split.taps, self._split.stages[index].taps, index)

    def backward(self, index: int) -> Bundle | None:
        """What the gradients of one micro-batch tap at a stage."""
        if index not in self._of_backward:
            found = self._find_backward(index) if self._shows_gradients else None
            self._of_backward[index] = found
        return self._of_backward[index]

    def of_gradients(self, index: int, gradients: Sequence[Any]) -> tuple[list[Any], ...]:
        """Returns the arrays of `backward`, or nothing; runs in the program."""
        bundle = self.backward(index)
        if bundle is None:
            return ()
        _, tapped = collecting(self._show)(index, gradients)
        return (bundle.packed(jax.tree.leaves(tapped)),)

    def _find_backward(self, index: int) -> Bundle | None:
        trainable = self._model.trainable_variables  # which walks through all layers
        weights = [trainable[place] for place in self._split.stages[index].trainable]
        specs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in weights]
        _, tapped = jax.eval_shape(lambda g: collecting(self._show)(index, g), specs)
        return bundle_of(tapped, range(len(jax.tree.leaves(tapped))), index, index)

    def _show(self, index: int, gradients: Sequence[Any]) -> None:
        variables, places = self._model.trainable_variables, self._split.stages[index].trainable
        whole: list[Any] = [None] * len(variables)
        for place, gradient in zip(places, gradients, strict=True):
            whole[place] = gradient
        reduce = reduction_of(replace(self._options, norms=False))
        tap_gradients(self._model, whole, self._options.micro_gradients, reduce=reduce)
        optimizer = tapping_optimizer(self._model)
        if optimizer is not None and places:
            optimizer.tap_micro_gradients(list(gradients), [variables[place] for place in places])


def bundle_of_update(tapped: Any, part: UpdatePart, stage: int) -> Bundle | None:
    """What a stage's part of the update taps, of all that the update does."""
    return bundle_of(tapped, part.taps, stage)


def tap_stage_update(
    model: keras.Model,
    split: Split,
    taps: TapRequest,
    gradients: Gradients,
    optimizer: Sequence[Any],
) -> None:
    """Taps what is wanted of the gradients that are about to be applied.

    Args:
        model: whose gradients they are.
        split: its stages.
        taps: what is wanted.
        gradients: of all weights.
        optimizer: values of the optimizer before the update.
    """
    scale = loss_scale(model, optimizer)
    reduce = reduction_of(taps)
    last = len(split.stages) - 1
    homes = [split.owners.get(Slot("trainable", k), last) for k in range(len(gradients))]
    for stage in range(last + 1):  # one by one: what is computed at once cannot be cut
        own = [g if home == stage else None for g, home in zip(gradients, homes, strict=True)]
        tap_gradients(model, own, taps.gradients, scale=scale, reduce=reduce)
    if scale is not None and taps.micro_gradients:
        for stage in split.stages:
            if stage.trainable:
                tap(LossScale(stage.index), jnp.asarray(scale, jnp.float32))


def homes_of(tapped: Tapped) -> dict[Slot, int]:
    """Returns the stage of those leaves of an update's taps that are for one stage."""
    keys = [key for key, value in tapped.items() for _ in jax.tree.leaves(value)]
    return {
        Slot("tap", number): key.stage
        for number, key in enumerate(keys)
        if isinstance(key, LossScale)
    }


def halted_unless_finite(
    model: keras.Model, gradients: Gradients, patterns: Sequence[str], new: Any, old: Any
) -> Any:
    """Returns `new`, or `old` where a watched gradient is not finite; taps which it is."""
    watched = [
        jnp.isfinite(gradient).all()
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
        if matches(gradient_name(model, variable), patterns)
    ]
    if not watched:
        return new
    halted = ~jnp.stack(watched).all()
    tap(HALTED, halted)
    return unless(halted, new, old)


def across_rounds(arrays: Sequence[Any], gather: bool) -> list[Any]:
    """Returns tapped arrays `[1, ...]` of one replica as those of all, `[1, replicas, ...]`.

    Runs under the mesh's axis.

    Args:
        arrays: of this replica.
        gather: whether every replica needs all of them, as where they are of several processes.
    """
    if gather:
        return [lax.all_gather(array, REPLICA, axis=1) for array in arrays]
    return [array[:, None] for array in arrays]


def bundle_of(
    tapped: Tapped, numbers: Sequence[int], stage: int, trace: int | None = None
) -> Bundle | None:
    """Describes those leaves of a trace's taps that have these numbers; None if there are none."""
    if not numbers:
        return None
    trees = {key: jax.tree.structure(value) for key, value in tapped.items()}
    every = [(key, place) for key, tree in trees.items() for place in range(tree.num_leaves)]
    mine = [every[number] for number in numbers]
    rows = [k for k, (key, _) in enumerate(mine) if isinstance(key, Tensor)]
    others = [k for k in range(len(mine)) if k not in rows]
    tensors = tuple(replace(mine[k][0], stage=stage) for k in rows)
    return Bundle(
        stage=stage,
        trace=trace,
        rows=Rows(tensors) if tensors else None,
        leaves=tuple(mine[k] for k in others),
        trees=trees,
        _order=(*rows, *others),
    )
