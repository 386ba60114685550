"""The micro-batches of blocks, as a pipeline takes them: one of each replica at a time.

block leaves   [capacity, rows, ...]          ->  [rows, ...]
with replicas  [rounds, replicas, rows, ...]  ->  [replicas, rows, ...], the last may be partly
                                                  used: `steps` is the number used

Where batches are divided, each part of one is a micro-batch, and its last part ends the step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.block import BlockSlice
from millrace.programs.plan import BatchSpec, Division
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.runtime.tasks import StageTasks
from millrace.run.pipelines.runtime.update import StageUpdate


class Shape(NamedTuple):
    """The tasks and the update that run micro-batches of one shape."""

    builder: StageBuilder
    stages: list[StageTasks]
    update: StageUpdate | None
    rows: int
    treedef: jax.tree_util.PyTreeDef  # of a batch


class MicroBatch(NamedTuple):
    """One batch, or one for each replica."""

    leaves: Sequence[np.ndarray]  # of x, y and sample weights, in host memory
    shape: Shape
    steps: int  # replicas that have a batch; 1 without replicas
    first: int  # the first of these replicas
    share: float = 1.0  # of the rows of a batch
    ends: bool = True  # whether it is the last part of its batch

    def steps_argument(self, replicas: int) -> tuple[np.ndarray, ...]:
        """Returns the argument `steps` of the programs of several replicas; nothing for one."""
        return () if replicas == 1 else (np.array([self.first, self.steps], np.int32),)

    def batches(self, replicas: int) -> list[ArrayTree]:
        """Returns copies of the batches, in host memory."""
        leaves = [leaf[None] if replicas == 1 else leaf for leaf in self.leaves]
        own = range(1) if replicas == 1 else range(self.first, self.first + self.steps)
        tree = self.shape.treedef
        return [jax.tree.unflatten(tree, [np.array(leaf[k]) for leaf in leaves]) for k in own]


def micro_batches(
    slices: Iterable[BlockSlice],
    shape_of: Callable[[BatchSpec], Shape],
    division_of: Callable[[BatchSpec], Division],
    replicas: int,
) -> Iterator[MicroBatch]:
    """Yields the micro-batches of slices."""
    for block_slice in slices:
        spec = block_slice.block.spec
        parts = division_of(spec).slices
        specs = [spec.of_rows(k.stop - k.start) for k in parts] if len(parts) > 1 else [spec]
        shapes = list(map(shape_of, specs))
        leaves = jax.tree.leaves(block_slice.block.batches)
        end = block_slice.start + block_slice.count
        step = block_slice.start
        while step < end:
            entry, first = divmod(step, replicas)
            steps = min(replicas - first, end - step)
            batch = [leaf[entry, ...] for leaf in leaves]
            for number, (rows, shape) in enumerate(zip(parts, shapes, strict=True)):
                part = batch
                if len(parts) > 1:
                    index = rows if replicas == 1 else (slice(None), rows)
                    part = [leaf[index] for leaf in batch]
                share, ends = shape.rows / max(spec.rows, 1), number == len(parts) - 1
                yield MicroBatch(part, shape, steps, first, share, ends)
            step += steps


def next_update(remaining: Iterator[MicroBatch], steps: int) -> list[MicroBatch]:
    """Returns the next micro-batches of `steps` steps together; fewer at the end of the data."""
    batches: list[MicroBatch] = []
    while steps > 0 and (micro_batch := next(remaining, None)) is not None:
        batches.append(micro_batch)
        steps -= micro_batch.steps * micro_batch.ends
    return batches


def steps_of(micro_batches: Iterable[MicroBatch]) -> int:
    """Returns the number of batches that end within micro-batches."""
    return sum(each.steps for each in micro_batches if each.ends)
