"""Runs one update again, on one device, with statistics of every tensor in it.

micro-batch 0    activations in the order of forward, the loss, gradients from the last one back
micro-batch 1    ...
update           the gradients that would be applied
"""

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.arguments import checked
from millrace.errors import DataError, MillraceError, OptionError
from millrace.feeds.merged_batches import merge_batches
from millrace.fit.controller import Controller
from millrace.fit.functions import LoopFunction
from millrace.fit.setup import Setup
from millrace.fit.stages import StageAssignment
from millrace.fit.totals import Totals
from millrace.memory_report.report import explained
from millrace.options import Accumulation, Options, Reduction, TapRequest, directory_path
from millrace.plan import ROLES, Mode
from millrace.pytrees import Array, ArrayTree
from millrace.records.flight import MODEL_FILE, Flight, FlightRecord, read_flight
from millrace.records.tensors import LOSS, STATISTICS, StatisticsBlock, Tensor, TensorRows
from millrace.steps.state import State, Values

_EVERYTHING = TapRequest(activations=("*",), micro_gradients=("*",), gradients=("*",), loss=True)
_NANS, _INFS = STATISTICS.index("nans"), STATISTICS.index("infs")


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The statistics of every tensor of one update."""

    micro_batches: TensorRows  # an entry for each micro-batch
    update: TensorRows  # one entry

    def in_order(self) -> Iterator[tuple[int | None, Tensor, np.ndarray]]:
        """Yields (micro-batch, tensor, statistics) in the order in which they are computed."""
        tensors = self.micro_batches.tensors
        forward = [k for k, tensor in enumerate(tensors) if tensor.kind == "activation"]
        forward += [k for k, tensor in enumerate(tensors) if tensor == LOSS]
        backward = [k for k, tensor in enumerate(tensors) if tensor.kind == "gradient"][::-1]
        for number, rows in enumerate(self.micro_batches.values):
            yield from ((number, tensors[k], rows[k]) for k in (*forward, *backward))
        for tensor, row in zip(self.update.tensors, self.update.values[0], strict=True):
            yield None, tensor, row

    def first_non_finite(self) -> tuple[int | None, Tensor, np.ndarray] | None:
        """Returns the first tensor with a NaN or an infinity."""
        return next((one for one in self.in_order() if is_non_finite(one[2])), None)


def is_non_finite(row: np.ndarray) -> bool:
    """Whether a tensor with these statistics contains a NaN or an infinity."""
    return bool(row[_NANS] > 0 or row[_INFS] > 0)


def counts(row: np.ndarray) -> tuple[int, int]:
    """Returns the numbers of NaNs and of infinities, from the statistics of a tensor."""
    return int(row[_NANS]), int(row[_INFS])


def run_again(
    model: keras.Model,
    state: Mapping[str, Sequence[Array]],
    batches: Sequence[ArrayTree],
    accumulation: Accumulation,
    device: jax.Device | None = None,
) -> Replay:
    """Runs an update of `model` and returns the statistics of all its tensors.

    The model keeps its values: the update is computed from `state`, and its result is discarded.

    Args:
        model: a compiled Keras model, which may be in the middle of training.
        state: values by role, as `state_of` returns them.
        batches: micro-batches as Keras's data adapter yields them: x, y and sample weights.
        accumulation: how their gradients are combined.
        device: runs the update; None is the first device.
    """
    if accumulation.synchronized_statistics and len(batches) > 1:  # of several replicas
        batches = [merge_batches(batches)]
    listener = _StatisticsCollector()
    stages = StageAssignment(model)
    stages.reset()
    setup = Setup(
        model=model,
        devices=(device or jax.local_devices()[0],),
        stages=stages,
        options=Options(accumulation=replace(accumulation, steps=len(batches))),
    )
    controller = Controller(setup, Totals())
    controller.watchers.outfeed.takes_queues = False
    controller.watch(listener, _EVERYTHING)
    function = LoopFunction(controller, Mode.TRAIN)
    with explained(controller):
        function(_copied(state), iter(batches))
    blocks = listener.blocks
    of_steps = [block.of_steps for block in blocks if block.of_steps is not None]
    of_updates = [block.of_updates for block in blocks if block.of_updates is not None]
    return Replay(_joined(of_steps), _joined(of_updates))


@checked
def replay(
    directory: str | os.PathLike[str], custom_objects: Mapping[str, object] | None = None
) -> "Replayed":
    """Runs an update again that NaNWatch wrote to a directory.

    Args:
        directory: the one that NaNWatch wrote.
        custom_objects: layers, losses and metrics of the model by name, as for
            `keras.models.load_model`.

    Raises:
        DataError: if the directory has no flight record, the record is damaged, or its model does
            not load.
        OptionError: if `directory` is no path.
    """
    directory = pathlib.Path(directory_path("directory", directory))
    flight = read_flight(directory)
    path = directory / MODEL_FILE
    if not path.exists():
        raise DataError(
            f"The flight record {directory} has no {MODEL_FILE}, without which nothing can run "
            "again. NaNWatch warns where Keras cannot save a model, and says why."
        )
    try:
        model: Any = keras.models.load_model(path, custom_objects=dict(custom_objects or {}))
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        reason = lines[-1].partition(". ")[0]  # after the whole configuration
        raise DataError(
            f"The model of the flight record {directory} does not load: {reason}. Put "
            "@keras.saving.register_keras_serializable() above custom layers, losses and metrics, "
            "and name their module: millrace replay DIRECTORY --import my_module."
        ) from error
    _check_state(directory, flight, model)
    try:
        reduction = Reduction(flight.record.reduction)
        accumulation = Accumulation(
            reduction=reduction,
            dtype=flight.record.accumulator,
            synchronized_statistics=flight.record.synchronized,
        )
        again = run_again(model, flight.state, flight.batches, accumulation)
    except Exception as error:  # of Keras and JAX: its batches do not fit its model, say
        if isinstance(error, MillraceError) and not isinstance(error, OptionError):
            raise
        reason = str(error) or type(error).__name__
        raise DataError(
            f"The update of the flight record {directory} does not run: {reason}. Copy the record "
            "again from where NaNWatch wrote it, and use the versions of Keras and JAX in its "
            "record.json."
        ) from error
    return Replayed(flight, again)


def _check_state(directory: pathlib.Path, flight: Flight, model: keras.Model) -> None:
    """Compares the values in a flight with the variables of its model.

    Raises:
        DataError: if they differ in number, shape or dtype.
    """
    if not getattr(model, "compiled", False):
        raise DataError(
            f"The model of the flight record {directory} has no optimizer. Copy the record again "
            "from where NaNWatch wrote it."
        )
    for role, values in state_of(model).items():
        variables = [(value.shape, value.dtype) for value in values]
        saved = [(value.shape, value.dtype) for value in flight.state.get(role, ())]
        if saved != variables:
            raise DataError(
                f"The flight record {directory} has {len(saved)} {role} values, and its model has "
                f"{len(variables)}, or they differ in shape or dtype. Copy the record again from "
                "where NaNWatch wrote it."
            )


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A flight record, and the replay of its update."""

    flight: Flight
    replay: Replay

    @property
    def record(self) -> FlightRecord:
        """The record that NaNWatch wrote when it stopped training."""
        return self.flight.record

    @property
    def repeats(self) -> bool:
        """Whether the same tensor of the same micro-batch was the first to go wrong."""
        first, recorded = self.replay.first_non_finite(), self.record.tensor
        if first is None or recorded is None:
            return first is None and recorded is None
        micro_batch, tensor, row = first
        return (micro_batch, tensor.kind, tensor.name, *counts(row)) == (
            self.record.micro_batch,
            recorded.kind,
            recorded.name,
            self.record.nans,
            self.record.infs,
        )

    @property
    def largest_difference(self) -> float:
        """The largest relative difference between finite statistics, recorded and replayed."""
        update = self.replay.update
        replayed = {t.name: row for t, row in zip(update.tensors, update.values[0], strict=True)}
        largest = 0.0
        for tensor, row in zip(self.flight.tensors, self.flight.statistics[-1], strict=True):
            again = replayed.get(tensor.name)
            if again is not None:
                both = np.isfinite(row) & np.isfinite(again)
                scale = np.maximum(np.abs(row[both]), 1e-6)
                gaps = np.abs(row[both] - again[both]) / scale
                largest = max(largest, float(gaps.max(initial=0.0)))
        return largest


def state_of(model: keras.Model) -> dict[str, list[np.ndarray]]:
    """Returns copies of the values of a model's variables, by role."""
    variables = {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,
        "optimizer": model.optimizer.variables,
        "metric": model.metrics_variables,
    }
    return {role: [np.array(v) for v in variables[role]] for role in ROLES[Mode.TRAIN]}


def _copied(state: Mapping[str, Sequence[Array]]) -> State:
    return tuple(Values(jnp.array(value) for value in state[role]) for role in ROLES[Mode.TRAIN])


def _joined(blocks: Sequence[TensorRows]) -> TensorRows:
    return TensorRows(blocks[0].tensors, np.concatenate([block.values for block in blocks]))


class _StatisticsCollector:
    def __init__(self) -> None:
        self.blocks: list[StatisticsBlock] = []

    def statistics(self, block: StatisticsBlock) -> None:
        self.blocks.append(block)
