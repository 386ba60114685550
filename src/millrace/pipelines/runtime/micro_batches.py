"""What a pipeline takes out of blocks: micro-batches, one of each replica at a time.

block leaves   [capacity, rows, ...]          ->  [rows, ...]
with replicas  [rounds, replicas, rows, ...]  ->  [replicas, rows, ...], the last may be partly
                                                  used: `steps` says how many are
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from millrace.feeds.block import BlockSlice
from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.runtime.tasks import StageTasks
from millrace.pipelines.runtime.update import StageUpdate
from millrace.plan import BatchSpec


class Shape(NamedTuple):
    """What runs micro-batches of one shape."""

    builder: StageBuilder
    stages: list[StageTasks]
    update: StageUpdate | None
    rows: int
    treedef: Any  # of a batch


class MicroBatch(NamedTuple):
    """One batch, or one for each replica."""

    leaves: Sequence[Any]  # of x, y and sample weights, in host memory
    shape: Shape
    steps: int  # replicas that have a batch; 1 without replicas
    first: int  # replica that does

    def counted(self, replicas: int) -> tuple[np.ndarray, ...]:
        """Returns what the programs of several replicas take besides their arrays."""
        return () if replicas == 1 else (np.array([self.first, self.steps], np.int32),)

    def batches(self, replicas: int) -> list[Any]:
        """Returns copies of the batches, in host memory."""
        found = [leaf[None] if replicas == 1 else leaf for leaf in self.leaves]
        places = range(1) if replicas == 1 else range(self.first, self.first + self.steps)
        tree = self.shape.treedef
        return [jax.tree.unflatten(tree, [np.array(leaf[k]) for leaf in found]) for k in places]


def micro_batches(
    slices: Iterable[BlockSlice], shape_of: Callable[[BatchSpec], Shape], replicas: int
) -> Iterator[MicroBatch]:
    """Yields the micro-batches of slices."""
    for block_slice in slices:
        shape = shape_of(block_slice.block.spec)
        leaves = jax.tree.leaves(block_slice.block.batches)
        end = block_slice.start + block_slice.count
        step = block_slice.start
        while step < end:
            entry, first = divmod(step, replicas)
            steps = min(replicas - first, end - step)
            yield MicroBatch([leaf[entry, ...] for leaf in leaves], shape, steps, first)
            step += steps


def next_update(rest: Iterator[MicroBatch], steps: int) -> list[MicroBatch]:
    """Returns the next micro-batches that make `steps` steps together; fewer at the data's end."""
    found: list[MicroBatch] = []
    while steps > 0 and (micro_batch := next(rest, None)) is not None:
        found.append(micro_batch)
        steps -= micro_batch.steps
    return found
