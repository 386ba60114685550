"""Batches and epochs from a description, without data.

    data of 10 batches, the last one smaller; steps_per_execution=4
    executions of an epoch    4 full | 4 full | 1 full, 1 small
    described by              4 full |          1 full, 1 small

One batch is drawn from the data. Keras sees a single execution for each epoch.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from millrace._compat.keras_data import get_data_adapter, is_array_adapter
from millrace.errors import OptionError
from millrace.feeds.block import Block, BlockSlice, batch_spec
from millrace.feeds.blocks import BlockShape, resident_cuts
from millrace.fit.epochs import FeedEpochIterator
from millrace.fit.execution import Execution
from millrace.plan import BatchSpec
from millrace.pytrees import Array, ArrayTree, Spec

ShapeAndDtype: TypeAlias = tuple[Sequence[int], DTypeLike]
BatchDescription: TypeAlias = (
    "Array | Spec | ShapeAndDtype | Sequence[BatchDescription] | Mapping[Any, BatchDescription]"
)


def batch_of_zeros(description: BatchDescription) -> ArrayTree:
    """Returns a batch of zeros as Keras's data adapter would give it to `fit`.

    Args:
        description: x, or a tuple of x, y and sample weights, each an array, a
            `jax.ShapeDtypeStruct`, a pair of shape and dtype, or a tree of these.

    Raises:
        OptionError: for any other value.
    """
    arguments: tuple[object, ...] = (description,)
    if isinstance(description, tuple) and not _is_pair(description):
        arguments = description
    if not 1 <= len(arguments) <= 3:
        raise OptionError(
            "batch_spec is one batch: (x, y) or (x, y, sample_weight). Received a tuple of "
            f"{len(arguments)}. Several inputs of a model are a list or a dict within x."
        )
    zeros = [jax.tree.map(_zeros, each, is_leaf=_is_pair) for each in arguments]
    leaves = jax.tree.leaves(zeros)
    if not leaves or not all(leaf.ndim for leaf in leaves):
        raise OptionError(
            "batch_spec has no leaf with rows. Set it to arrays of one batch, such as "
            "(x[:32], y[:32]), or to ((32, 784), 'float32') for each."
        )
    names = dict(zip(("x", "y", "sample_weight"), zeros, strict=False))
    adapter = get_data_adapter(**names, batch_size=len(leaves[0]), class_weight=None)
    return next(iter(adapter.get_jax_iterator()))


def _is_pair(value: object) -> TypeGuard[tuple[Sequence[int], str | type | np.dtype]]:
    """Whether a value is a shape and a dtype."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[0], tuple | list)
        and all(isinstance(length, int) for length in value[0])
        and isinstance(value[1], str | type | np.dtype)
    )


def _zeros(leaf: object) -> np.ndarray:
    # Zeros that are only read take no memory.
    if _is_pair(leaf):
        return np.zeros(leaf[0], jnp.dtype(leaf[1]))
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None:
        return np.zeros(shape, dtype)
    raise OptionError(
        "batch_spec is made of arrays, jax.ShapeDtypeStructs, or pairs of shape and dtype. "
        f"Received: {leaf!r}. Set it to ((32, 784), 'float32'), say."
    )


@dataclass(frozen=True, slots=True)
class DescribedSteps:
    """The different executions of a loop, and the number of steps of all."""

    executions: tuple[tuple[BlockSlice, ...], ...]
    longest: int  # steps of a full execution
    batch: ArrayTree  # one of them, as the data adapter gives it
    counts: Mapping[BatchSpec, int]  # steps, by the spec of their batches


class DescribedExecution(Execution):
    """Stands for all executions of an epoch."""

    def __init__(self, epoch: "DescribedEpochIterator", counts: list[int], position: int):
        super().__init__(epoch, sum(counts), 0)
        self._described = epoch
        self._counts = counts
        self._position = position  # of the first step in its pass through the data

    def describe(self) -> DescribedSteps:
        """Describes the executions.

        Raises:
            StopIteration: if the data has no batch.
        """
        return self._described.describe(self._counts, self._position)

    def __next__(self) -> ArrayTree:
        return self._described.first_batch()


class DescribedEpochIterator(FeedEpochIterator):
    """Draws one batch, and takes all others to have its shapes, but for the last rows of arrays."""

    _first: ArrayTree = None

    def first_batch(self) -> ArrayTree:
        """Returns the first batch of the data, which is drawn once.

        Raises:
            StopIteration: if there is none.
        """
        if self._first is None:
            self._first = next(self.host_batches())
        return self._first

    def executions(self) -> Iterator[tuple[int, int, Execution]]:
        """Yields one execution for an epoch, and counts the steps of all."""
        self.number += 1
        total, position = self.num_batches, self.steps_in_pass
        counts = [self.steps_per_execution]
        if total is not None:
            self.host_batches()  # the pass has begun, and the next epoch goes on with it
            counts = self._sizes_of(total)
            self.steps_in_pass += sum(counts)
            self._end_epoch(sum(counts), total)
        yield 0, sum(counts) - 1, DescribedExecution(self, counts, position)

    def describe(self, counts: list[int], position: int) -> DescribedSteps:
        """Describes the executions of an epoch.

        Args:
            counts: steps of each execution.
            position: of the first step in its pass through the data.
        """
        batch = self.first_batch()
        spec = batch_spec(batch)
        shape = self._controller.feeds.block_shape(
            self._controller.setup, self._mode, self.steps_per_execution
        )
        adapter: Any = self.data_adapter
        last_rows = adapter.partial_batch_size if is_array_adapter(adapter) else None
        ends_short = bool(last_rows) and position + sum(counts) == self.pass_length
        if is_array_adapter(adapter) and self.would_reside(batch):
            full = adapter.batch_size
            rows = (sum(counts) - ends_short) * full + (last_rows if ends_short else 0)
            on_host = self._controller.setup.destination.is_host_memory
            executions = _cut(resident_cuts(spec, rows, full, shape, on_host), counts)
        else:
            steps = [spec] * sum(counts)
            if ends_short and last_rows:
                steps[-1] = spec.of_rows(last_rows)
            executions = streamed(steps, counts, shape)
        numbers: Counter[BatchSpec] = Counter()
        for block_slice in (block_slice for each in executions for block_slice in each):
            numbers[block_slice.block.spec] += block_slice.count
        return DescribedSteps(
            _distinct(executions, shape.replicas), self.steps_per_execution, batch, numbers
        )


def streamed(
    steps: list[BatchSpec], counts: Iterable[int], shape: BlockShape
) -> list[tuple[BlockSlice, ...]]:
    """Returns the slices of executions whose blocks are stacked from batches in their order.

    Args:
        steps: specs of the batches.
        counts: steps of each execution.
        shape: bounds of a block.
    """
    executions: list[tuple[BlockSlice, ...]] = []
    position = 0
    for count in counts:
        end, slices = position + count, []
        while position < end:
            first = position % shape.replicas
            spec = steps[position]
            capacity = shape.capacity(spec, first + end - position)
            most = min(capacity - first, end - position, shape.limit_at(position) or capacity)
            number = next((n for n in range(most) if steps[position + n] != spec), most)
            slices.append(BlockSlice(Block(None, spec, capacity, number, first), first, number))
            position += number
        executions.append(tuple(slices))
    return executions


def _cut(blocks: Iterable[Block], counts: Iterable[int]) -> list[tuple[BlockSlice, ...]]:
    """Returns the slices of consecutive executions, cut from blocks as by `Infeed.take`."""
    executions: list[tuple[BlockSlice, ...]] = []
    blocks = iter(blocks)
    block, used = next(blocks), 0
    for count in counts:
        slices = []
        while count:
            if used == block.steps:
                block, used = next(blocks), 0
            number = min(count, block.steps - used)
            slices.append(BlockSlice(block, block.first + used, number))
            used, count = used + number, count - number
        executions.append(tuple(slices))
    return executions


def _distinct(
    executions: Iterable[tuple[BlockSlice, ...]], replicas: int
) -> tuple[tuple[BlockSlice, ...], ...]:
    """Returns one execution for each set of programs, wherever in a block its slices begin."""
    distinct: dict[Hashable, tuple[BlockSlice, ...]] = {}
    for execution in executions:
        key = tuple(
            (each.block.spec, each.block.capacity, each.start % replicas, each.count)
            for each in execution
        )
        distinct.setdefault(key, execution)
    return tuple(distinct.values())
