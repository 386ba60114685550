"""Runs one update again, on one device, and looks at every tensor in it.

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
from millrace.errors import DataError
from millrace.fit.controller import Controller
from millrace.fit.functions import LoopFunction
from millrace.fit.setup import Setup
from millrace.fit.stages import StageAssignment
from millrace.fit.totals import Totals
from millrace.memory_report.out_of_memory import explained
from millrace.options import Accumulation, Options, Reduction, TapRequest, directory_path, member
from millrace.plan import ROLES, Mode
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
    """Whether the statistics are of a tensor with a NaN or an infinity."""
    return bool(row[_NANS] > 0 or row[_INFS] > 0)


def counts(row: np.ndarray) -> tuple[int, int]:
    """Returns how many elements are NaN, and how many infinite."""
    return int(row[_NANS]), int(row[_INFS])


def run_again(
    model: keras.Model,
    state: Mapping[str, Sequence[Any]],
    batches: Sequence[Any],
    accumulation: Accumulation,
    device: jax.Device | None = None,
) -> Replay:
    """Runs an update of `model` and returns the statistics of all its tensors.

    The model keeps its values: the update is computed from `state` and given up.

    Args:
        model: a compiled Keras model, which may be one that is just being trained.
        state: values by role, as `state_of` returns them.
        batches: micro-batches as Keras's data adapter yields them: x, y and sample weights.
        accumulation: how their gradients are combined.
        device: to run on; None is the first one.
    """
    listener = _Collected()
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
    directory: str | os.PathLike[str], custom_objects: Mapping[str, Any] | None = None
) -> "Replayed":
    """Runs the update again that NaNWatch has written to `directory`.

    Raises:
        DataError: if it holds no flight record, or its model cannot be loaded.
        OptionError: if `directory` is no path.
    """
    directory = pathlib.Path(directory_path("directory", directory))
    flight = read_flight(directory)
    path = directory / MODEL_FILE
    try:
        model: Any = keras.models.load_model(path, custom_objects=dict(custom_objects or {}))
    except Exception as error:
        reason = str(error).splitlines()[-1].partition(". ")[0]  # after the whole configuration
        raise DataError(
            f"The model of the flight record {directory} does not load: {reason}. If it has "
            "layers, losses or metrics of your own, name the module that registers them: "
            "millrace replay DIRECTORY --import my_module."
        ) from error
    record = flight.record
    reduction = member(Reduction, "gradient_accumulation_reduction_method", record.reduction)
    accumulation = Accumulation(reduction=reduction, dtype=record.accumulator)
    found = run_again(model, flight.state, flight.batches, accumulation)
    return Replayed(flight, found)


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A flight record and what running it again has shown."""

    flight: Flight
    replay: Replay

    @property
    def record(self) -> FlightRecord:
        """What was found when it happened."""
        return self.flight.record

    @property
    def repeats(self) -> bool:
        """Whether the same tensor of the same micro-batch went wrong first."""
        found = self.replay.first_non_finite()
        if found is None or self.record.tensor is None:
            return found is None and self.record.tensor is None
        micro_batch, tensor, row = found
        before = self.record
        name = (tensor.kind, tensor.name)
        return (micro_batch, *name, *counts(row)) == (
            before.micro_batch,
            *(before.tensor.kind, before.tensor.name),  # type: ignore[union-attr]
            before.nans,
            before.infs,
        )

    @property
    def largest_difference(self) -> float:
        """The largest relative difference of a finite number to what was recorded of the update."""
        update = self.replay.update
        mine = {t.name: row for t, row in zip(update.tensors, update.values[0], strict=True)}
        largest = 0.0
        for tensor, row in zip(self.flight.tensors, self.flight.statistics[-1], strict=True):
            again = mine.get(tensor.name)
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


def _copied(state: Mapping[str, Sequence[Any]]) -> State:
    return tuple(Values(jnp.array(value) for value in state[role]) for role in ROLES[Mode.TRAIN])


def _joined(blocks: Sequence[TensorRows]) -> TensorRows:
    return TensorRows(blocks[0].tensors, np.concatenate([block.values for block in blocks]))


class _Collected:
    """Keeps all statistics."""

    def __init__(self) -> None:
        self.blocks: list[StatisticsBlock] = []

    def statistics(self, block: StatisticsBlock) -> None:
        self.blocks.append(block)
