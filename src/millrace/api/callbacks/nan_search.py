"""Finds the first tensor of an update that is not finite: the update runs again on one device.

micro-batch 0    activations in the order of forward, the loss, gradients from the last one back
micro-batch 1    ...
update           the gradients that would be applied
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import keras
import numpy as np

from millrace.base.options import Accumulation, Options, TapRequest
from millrace.base.pytrees import ArrayTree
from millrace.base.records.tensors import LOSS, STATISTICS, StatisticsBlock, Tensor, TensorRows
from millrace.programs.feeds.merged_batches import merge_batches
from millrace.programs.plan import Mode
from millrace.programs.steps.state import state_of, to_keras
from millrace.run.fit.controller import Controller
from millrace.run.fit.functions import LoopFunction
from millrace.run.fit.pipelined_model import StageAssignment
from millrace.run.fit.setup import Setup
from millrace.run.fit.totals import Totals
from millrace.tools.memory_report.report import explained

_EVERYTHING = TapRequest(activations=("*",), micro_gradients=("*",), gradients=("*",), loss=True)
_NANS, _INFS = STATISTICS.index("nans"), STATISTICS.index("infs")


@dataclass(frozen=True, slots=True)
class NonFiniteTensor:
    """A tensor of an update with NaNs or infinities."""

    micro_batch: int | None = None  # None if it is of the update as a whole
    tensor: Tensor | None = None  # None if there is none
    nans: int = 0  # elements
    infs: int = 0


def first_non_finite(
    model: keras.Model, batches: Sequence[ArrayTree], accumulation: Accumulation, device: jax.Device
) -> NonFiniteTensor:
    """Returns the first tensor with a NaN or an infinity in an update of a model, if there is one.

    The model keeps its values: the update is computed from copies, and its result is discarded.

    Args:
        model: a compiled Keras model, which may be in the middle of training.
        batches: micro-batches as Keras's data adapter yields them: x, y and sample weights.
        accumulation: how their gradients are combined.
        device: runs the update.
    """
    for micro_batch, tensor, row in _in_order(_run(model, batches, accumulation, device)):
        if is_non_finite(row):
            return NonFiniteTensor(micro_batch, tensor, int(row[_NANS]), int(row[_INFS]))
    return NonFiniteTensor()


def is_non_finite(row: np.ndarray) -> bool:
    """Whether a tensor with these statistics contains a NaN or an infinity."""
    return bool(row[_NANS] > 0 or row[_INFS] > 0)


def _run(
    model: keras.Model, batches: Sequence[ArrayTree], accumulation: Accumulation, device: jax.Device
) -> list[StatisticsBlock]:
    """Runs an update, and returns the statistics of all its tensors."""
    if accumulation.synchronized_statistics and len(batches) > 1:  # of several replicas
        batches = [merge_batches(batches)]
    collector = _StatisticsCollector()
    stages = StageAssignment(model)
    stages.reset()
    setup = Setup(
        model=model,
        devices=(device,),
        stages=stages,
        options=Options(accumulation=replace(accumulation, steps=len(batches))),
    )
    controller = Controller(setup, Totals())
    controller.watchers.outfeed.takes_queues = False
    controller.watch(collector, _EVERYTHING)
    function = LoopFunction(controller, Mode.TRAIN)
    with explained(controller):
        # Copies: the program that takes values reuses their memory. By way of the host: those of a
        # pipeline are on several devices.
        state = state_of(model, Mode.TRAIN, lambda variable: jnp.array(np.array(variable)))
        function(to_keras(state, Mode.TRAIN), iter(batches))
    return collector.blocks


def _in_order(
    blocks: Sequence[StatisticsBlock],
) -> Iterator[tuple[int | None, Tensor, np.ndarray]]:
    """Yields (micro-batch, tensor, statistics) in the order in which they are computed."""
    micro_batches = _joined([each.of_steps for each in blocks if each.of_steps is not None])
    update = _joined([each.of_updates for each in blocks if each.of_updates is not None])
    tensors = micro_batches.tensors
    forward = [k for k, tensor in enumerate(tensors) if tensor.kind == "activation"]
    forward += [k for k, tensor in enumerate(tensors) if tensor == LOSS]
    backward = [k for k, tensor in enumerate(tensors) if tensor.kind == "gradient"][::-1]
    for number, rows in enumerate(micro_batches.values):
        yield from ((number, tensors[k], rows[k]) for k in (*forward, *backward))
    for tensor, row in zip(update.tensors, update.values[0], strict=True):
        yield None, tensor, row


def _joined(blocks: Sequence[TensorRows]) -> TensorRows:
    return TensorRows(blocks[0].tensors, np.concatenate([block.values for block in blocks]))


class _StatisticsCollector:
    def __init__(self) -> None:
        self.blocks: list[StatisticsBlock] = []

    def statistics(self, block: StatisticsBlock) -> None:
        self.blocks.append(block)
