"""BatchNormalization over all micro-batches of an update: the forward that is traced for it.

    forward of a micro-batch, statistics marked    this file
      its levels                                   statistics_levels.py
    an update, level by level                      synchronized_update.py
      statistics of the big batch                  merged_statistics.py

Normalized by the statistics of all its micro-batches, an update is that of one big batch. Micro-
batches then depend on each other, so an update is no sum over separate steps. A model in which no
layer takes statistics of its batch in training is accumulated as without the option.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import keras

from millrace._compat.batch_moments import contains_moments, marks_moments, moments_marked
from millrace._compat.jaxpr import trace
from millrace._compat.keras_steps import compute_forward
from millrace.errors import UnsupportedError
from millrace.plan import Mode, Plan
from millrace.pytrees import ArrayTree
from millrace.steps.accumulate import scale_of, weight_of
from millrace.steps.program import batch_specs
from millrace.steps.state import State, as_lists, as_state, with_dtypes_of
from millrace.steps.statistics_levels import ARGUMENT, ForwardParts, StatisticsLevels
from millrace.steps.synchronized_update import EqualBatches
from millrace.steps.tapped_step import is_due, tapping_optimizer
from millrace.taps.taps import Tapped, collecting
from millrace.taps.tensors import activations_tapped, loss_tapped, packed


def synchronizes(plan: Plan) -> bool:
    """Whether the updates of a plan may share statistics: they have several micro-batches."""
    trains, accumulation = plan.mode is Mode.TRAIN, plan.accumulation
    return trains and accumulation.synchronized_statistics and plan.update_steps > 1


class SynchronizedForward:
    """The traced forward of a micro-batch, cut into levels."""

    def __init__(
        self, model: keras.Model, levels: StatisticsLevels, parts: ForwardParts, spec: Any
    ):
        """Takes what `traced_forward` has found."""
        self.levels = levels
        self._model, self._inputs = model, levels.graph.invars
        self._num_weights, self._num_before = len(parts.weights), len(parts.before)
        self.num_non_trainable = len(model.non_trainable_variables)
        self.result, self.tapped = spec  # specs of the logs, and of taps
        self._tree = jax.tree.structure(spec)

    def equal_batches(
        self,
        optimizer: Mapping[int, jax.Array],
        batch: Callable[[jax.Array], ArrayTree],
        seeds: jax.Array,
        **others: Any,
    ) -> EqualBatches:
        """Returns micro-batches of this shape.

        Args:
            optimizer: values of the optimizer, by number.
            batch: returns one micro-batch.
            seeds: `[count]`: the weight of each loss in that of the update.
            others: further attributes of `EqualBatches`.
        """
        weights, changing = self._num_weights, self._num_before
        begin = weights + self.num_non_trainable
        slots = len(self._model.optimizer.variables)
        invars = self._inputs
        of_optimizer = invars[begin : begin + slots]
        inputs = {of_optimizer[k]: value for k, value in optimizer.items()}
        of_batch = invars[weights + changing + slots :]

        def leaves(number: jax.Array) -> dict[Any, jax.Array]:
            return dict(zip(of_batch, jax.tree.leaves(batch(number)), strict=True))

        arguments: dict[str, Any] = {"active": None, "begin": _as_they_are, "end": _the_new}
        return EqualBatches(
            self.levels, inputs, leaves, len(seeds), seeds, **{**arguments, **others}
        )

    def outputs(self, leaves: Sequence[jax.Array]) -> tuple[ArrayTree, Tapped]:
        """Returns logs and taps, `[count, ...]`, of outputs of an update."""
        return jax.tree.unflatten(self._tree, leaves)


def traced_forward(model: keras.Model, plan: Plan, state: State) -> SynchronizedForward | None:
    """Traces the forward of a micro-batch; None if no layer takes statistics of its batch.

    Args:
        model: a compiled Keras model.
        plan: has the specs of a batch.
        state: specs of the values of one replica.

    Raises:
        UnsupportedError: if the plan has an option that needs separate micro-batches.
    """

    def run(state: State, batch: ArrayTree) -> tuple[jax.Array, State, ArrayTree]:
        def compute() -> tuple[jax.Array, tuple[Any, Any]]:
            loss, new, logs = compute_forward(model, "train", as_lists(state), batch)
            return loss, (new, logs)

        if not plan.tapped:
            loss, (new, logs) = compute()
        else:
            with activations_tapped(model, plan.taps, is_due(model, state, plan.taps.every)):
                run = loss_tapped(_undifferentiated)(compute) if plan.taps.loss else compute
                found = run()
            loss, (new, logs) = found[0] if plan.taps.loss else found
        return loss, with_dtypes_of(as_state(new), state), logs

    def forward(state: State, batch: ArrayTree) -> Any:
        (loss, new, logs), tapped = collecting(run)(state, batch)
        tapped = packed(tapped) if plan.tapped else Tapped()
        return loss, list(new[1]), list(new[3]), (logs, tapped)

    try:
        with moments_marked():
            graph, spec = trace(forward, state, batch_specs(plan, ()))
    except NotImplementedError as error:
        if "millrace_batch_moments" not in str(error):
            raise
        raise UnsupportedError(
            f"The model {model.name!r} differentiates its own BatchNormalization in its forward, "
            f"and {ARGUMENT} needs the statistics of all micro-batches there. Leave the option out."
        ) from error
    if not any(marks_moments(e) or contains_moments(e) for e in graph.equations):
        return None
    _check(model, plan)
    sizes = [len(values) for values in state]
    ends = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    weights = graph.invars[: ends[1]]
    before = (*graph.invars[ends[1] : ends[2]], *graph.invars[ends[3] : ends[4]])
    size = len(before)
    loss, *others = graph.outvars
    parts = ForwardParts(graph, weights, before, tuple(others[:size]), loss, tuple(others[size:]))
    return SynchronizedForward(model, StatisticsLevels(parts, model.name), parts, spec[-1])


def _undifferentiated(function: Callable[..., Any]) -> Callable[..., tuple[Any, None]]:
    return lambda *args, **kwargs: (function(*args, **kwargs), None)


def _check(model: keras.Model, plan: Plan) -> None:
    """Refuses options that need separate micro-batches."""
    if plan.recompute is not None:
        raise UnsupportedError(
            f"{ARGUMENT} decides what is computed again between the BatchNormalization layers of "
            f"{model.name!r}, so recomputation options cannot. Set "
            "model.set_recomputation_options(mode='none'), or leave the option out."
        )
    if plan.taps.micro_gradients or tapping_optimizer(model) is not None:
        raise UnsupportedError(
            f"With {ARGUMENT} the micro-batches of {model.name!r} have no gradients of their own: "
            "each changes the statistics of all. Watch the gradients of updates instead "
            "(when='before_apply'; an OutfeedOptimizer likewise), or leave the option out."
        )
    if plan.offload.accumulators:
        raise UnsupportedError(
            f"{ARGUMENT} adds gradients up while it goes back through the layers of "
            f"{model.name!r}, in device memory. Set offload_gradient_accumulation_buffers=False."
        )
    if any(getattr(v, "overwrite_with_gradient", False) for v in model.trainable_variables):
        raise UnsupportedError(
            f"{ARGUMENT} does not go with the float8 layers of {model.name!r}, whose scales "
            "follow from single micro-batches. Leave the option out, or train without float8."
        )


class LossWeights(NamedTuple):
    """The weights of losses in the sum over an update, and the factor of that sum."""

    seeds: list[float]  # of each of the equal batches
    scale: float


def loss_weights(plan: Plan, rows: Sequence[tuple[int, int]]) -> LossWeights:
    """Returns the weights of the losses of an update.

    Args:
        plan: says how gradients are combined.
        rows: of each of the equal batches the rows and the number, of all replicas.
    """
    reduction, replicas = plan.accumulation.reduction, plan.replicas
    total_steps = sum(count for _, count in rows)
    if reduction.is_running:
        seeds = [min(replicas, total_steps) / total_steps for _ in rows]
        return LossWeights(seeds, scale_of(reduction, total_steps, replicas))
    seeds = [weight_of(reduction, each, rows[0][0]) for each, _ in rows]
    total = sum(seed * count for seed, (_, count) in zip(seeds, rows, strict=True))
    return LossWeights(seeds, scale_of(reduction, total, replicas))


def _as_they_are(
    numbers: Sequence[int], values: list[jax.Array], number: jax.Array
) -> list[jax.Array]:
    del numbers, number
    return values


def _the_new(
    numbers: Sequence[int], old: list[jax.Array], new: list[jax.Array], number: jax.Array
) -> list[jax.Array]:
    del numbers, old, number
    return new
