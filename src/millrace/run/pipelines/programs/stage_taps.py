"""The values that the programs of a pipeline tap, each carried out of the stage that computes it.

    forward           statistics of activations, and values that layers enqueue
    backward          statistics of the gradients of one micro-batch, and values enqueued by the
    (backward_weight) optimizer's `tap_micro_gradients`
    final             statistics of the gradients of an update, and values enqueued by the optimizer

Forward and update are traced whole and cut, so a value with leaves of several stages leaves in
several programs, and the host puts it together again (`run/pipelines/runtime/taps.py`). The
gradients of a micro-batch are never in one trace: each stage taps its own.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import jax
import jax.numpy as jnp
import keras
from jax import lax

from millrace.base.devices import REPLICA
from millrace.base.options import TapRequest
from millrace.base.records.tensors import Tensor
from millrace.programs.plan import Mode, Plan
from millrace.programs.steps.accumulate import Gradients
from millrace.programs.steps.loop import unless
from millrace.programs.steps.state import State
from millrace.programs.steps.tapped_step import tapping_optimizer
from millrace.programs.taps.statistics import reduction_of
from millrace.programs.taps.taps import Tapped, collecting, tap
from millrace.programs.taps.tensors import Rows, gradient_names, loss_scale, matches, tap_gradients
from millrace.run.pipelines.programs.split import Arrays, Slot, Split

T = TypeVar("T")  # a tree of arrays
HALTED = "halted"  # key of the flag of an update that was not applied; no queue has this name


@dataclass(frozen=True, slots=True)
class LossScale:
    """The key of an update's loss scale: the factor that the optimizer has put on the loss.

    Backward does not know the factor, so gradients of micro-batches leave scaled, and their
    statistics are divided by it afterwards, on the devices of their stage.
    """

    stage: int


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """The tapped values of one program, as arrays `[1, ...]`: one of statistics, then leaves."""

    stage: int
    trace: int | None  # the stage in whose own trace they were tapped; None: a trace of all stages
    rows: Rows | None
    leaves: tuple[tuple[Hashable, int], ...]  # key of a value, and the index of the leaf in it
    trees: Mapping[Hashable, jax.tree_util.PyTreeDef]  # structure of each value
    _order: tuple[int, ...]  # indices of statistics and leaves among the values that are packed

    @property
    def number(self) -> int:
        return len(self.leaves) + (self.rows is not None)

    def packed(self, values: Sequence[jax.Array]) -> Arrays:
        """Returns the arrays of tapped values; runs in the program."""
        ordered = [values[index] for index in self._order]
        number = len(self.rows.tensors) if self.rows is not None else 0
        rows = [jnp.stack(ordered[:number])] if number else []
        return [value[None] for value in (*rows, *ordered[number:])]


class StageTaps:
    """The tapped values of all programs of one plan."""

    def __init__(self, model: keras.Model, plan: Plan, split: Split):
        self._model, self._options, self._split = model, plan.taps, split
        taps_gradients = bool(plan.taps.micro_gradients) or tapping_optimizer(model) is not None
        self._taps_gradients = plan.mode is Mode.TRAIN and taps_gradients
        self._of_backward: dict[int, Bundle | None] = {}

    def forward(self, index: int) -> Bundle | None:
        """The values that a stage's forward taps."""
        return bundle_of(self._split.taps, self._split.stages[index].taps, index)

    def backward(self, index: int) -> Bundle | None:
        """The values tapped of a stage's gradients of one micro-batch."""
        if index not in self._of_backward:
            bundle = self._find_backward(index) if self._taps_gradients else None
            self._of_backward[index] = bundle
        return self._of_backward[index]

    def of_gradients(self, index: int, gradients: Arrays) -> tuple[Arrays, ...]:
        """Returns the arrays of `backward(index)`, if it taps any; runs in the program."""
        bundle = self.backward(index)
        if bundle is None:
            return ()
        _, tapped = collecting(self._tap_gradients)(index, gradients)
        return (bundle.packed(jax.tree.leaves(tapped)),)

    def _find_backward(self, index: int) -> Bundle | None:
        trainable = self._model.trainable_variables  # Keras walks through all layers for these
        weights = [trainable[weight] for weight in self._split.stages[index].trainable]
        specs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in weights]
        _, tapped = jax.eval_shape(lambda g: collecting(self._tap_gradients)(index, g), specs)
        return bundle_of(tapped, range(len(jax.tree.leaves(tapped))), index, index)

    def _tap_gradients(self, index: int, gradients: Arrays) -> None:
        variables, weights = self._model.trainable_variables, self._split.stages[index].trainable
        whole: list[jax.Array | None] = [None] * len(variables)
        for weight, gradient in zip(weights, gradients, strict=True):
            whole[weight] = gradient
        reduce = reduction_of(replace(self._options, norms=False))
        tap_gradients(self._model, whole, self._options.micro_gradients, reduce=reduce)
        optimizer = tapping_optimizer(self._model)
        if optimizer is not None and weights:
            optimizer.tap_micro_gradients(list(gradients), [variables[k] for k in weights])


def tap_stage_update(
    model: keras.Model,
    split: Split,
    taps: TapRequest,
    gradients: Gradients,
    optimizer: Sequence[jax.Array],
) -> None:
    """Taps the requested statistics of the gradients that are about to be applied.

    Args:
        model: of the gradients.
        split: its stages.
        taps: the requested statistics.
        gradients: of all weights.
        optimizer: values of the optimizer before the update.
    """
    scale = loss_scale(model, optimizer)
    reduce = reduction_of(taps)
    last = len(split.stages) - 1
    homes = [split.owners.get(Slot("trainable", k), last) for k in range(len(gradients))]
    for stage in range(last + 1):  # one by one: a joint computation could not be cut
        own = [g if home == stage else None for g, home in zip(gradients, homes, strict=True)]
        tap_gradients(model, own, taps.gradients, scale=scale, reduce=reduce)
    if scale is not None and taps.micro_gradients:
        for stage in split.stages:
            if stage.trainable:
                tap(LossScale(stage.index), jnp.asarray(scale, jnp.float32))


def homes_of(tapped: Tapped) -> dict[Slot, int]:
    """Returns the stages of those leaves of an update's taps that belong to one stage."""
    keys = [key for key, value in tapped.items() for _ in jax.tree.leaves(value)]
    return {
        Slot("tap", number): key.stage
        for number, key in enumerate(keys)
        if isinstance(key, LossScale)
    }


def halted_unless_finite(
    model: keras.Model, gradients: Gradients, patterns: Sequence[str], new: T, old: T
) -> T:
    """Returns `new`, or `old` where a watched gradient is not finite, and taps a flag for that."""
    watched = [
        jnp.isfinite(gradient).all()
        for name, gradient in zip(gradient_names(model), gradients, strict=True)
        if name is not None and matches(name, patterns)
    ]
    if not watched:
        return new
    halted = ~jnp.stack(watched).all()
    tap(HALTED, halted)
    return cast(T, unless(halted, cast(State, new), cast(State, old)))


def across_rounds(arrays: Sequence[jax.Array], gather: bool) -> Arrays:
    """Returns tapped arrays `[1, ...]` of one replica as those of all, `[1, replicas, ...]`.

    Runs under the mesh's axis.

    Args:
        arrays: of this replica.
        gather: whether every replica needs all of them, as replicas of several processes do.
    """
    if gather:
        return [lax.all_gather(array, REPLICA, axis=1) for array in arrays]
    return [array[:, None] for array in arrays]


def bundle_of(
    tapped: Tapped, numbers: Sequence[int], stage: int, trace: int | None = None
) -> Bundle | None:
    """Returns the bundle of the leaves with these numbers among a trace's taps; None if empty."""
    if not numbers:
        return None
    trees = {key: jax.tree.structure(value) for key, value in tapped.items()}
    every = [(key, leaf) for key, tree in trees.items() for leaf in range(tree.num_leaves)]
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
