"""Sources of blocks: batches stacked as they arrive, or rows gathered from resident arrays."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from millrace.base.devices import put_on
from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.block import (
    Block,
    Destination,
    SpecReader,
    batch_spec,
    empty_block,
    make_block,
)
from millrace.programs.plan import BatchSpec

FIRST_BLOCK_BYTES = 2**17  # of an epoch: about 0.1 ms of copying rows
SHORT_BYTES = 2**20  # executions with less share blocks
# Of blocks that stay in host memory until a task takes their batches. The allocator keeps memory of
# this size for the next block; larger ones would be new pages, which the system clears.
HOST_BLOCK_BYTES = 2**23
STEPS_TOGETHER = 32  # of short executions in one block; more gain nothing


@dataclass(frozen=True, slots=True)
class BlockShape:
    """The bounds of the number of steps in a block."""

    max_bytes: int
    multiples: tuple[int, int]  # steps of an execution and of an update; blocks hold whole ones
    capacities: dict[BatchSpec, int]  # that have executables; shared by all feeds of a mode
    together: int = STEPS_TOGETHER  # steps that a block of short executions holds
    replicas: int = 1  # a block holds whole rounds of them
    fixed: AbstractSet[BatchSpec] = frozenset()  # specs whose capacity grows for executions alone
    stays_on_host: bool = False  # until the tasks of a pipeline take batches
    shortened: Mapping[BatchSpec, int] | None = None  # steps of blocks that a budget wants

    def capacity(self, spec: BatchSpec, wanted: int) -> int:
        """Returns the capacity for `wanted` steps, at most what `max_bytes` allows.

        A larger capacity that has an executable already is used in part, so that shorter executions
        and smaller data sets need no other one.
        """
        if self.shortened is not None and spec in self.shortened:
            return self.shortened[spec]
        nbytes = max(1, spec.nbytes)
        most = max(1, self.max_bytes // nbytes)
        multiple = next((steps for steps in self.multiples if steps <= most), self.replicas)
        most = max(most - most % multiple, self.replicas)
        together = min(self.together, SHORT_BYTES // nbytes)
        wanted = min(max(wanted, together), most)
        wanted = -(-wanted // self.replicas) * self.replicas
        existing = self.capacities.get(spec, 0)
        if spec in self.fixed and existing >= min(wanted, self.multiples[0]):
            return existing
        if existing < wanted:
            self.capacities[spec] = wanted
        return max(existing, wanted)

    def steps_of(self, index: int, spec: BatchSpec, steps: int) -> int:
        """Returns how many of at most `steps` steps block `index` of an epoch should have.

        Nothing runs before the first block is ready, and the second is made while the first runs,
        so an epoch begins with small blocks: 128 KiB, 512 KiB, 2 MiB, ... They hold whole
        executions if these are short, otherwise whole updates. Blocks that stay in host memory hold
        at least one, and remain small.
        """
        nbytes = max(1, spec.nbytes)
        most = FIRST_BLOCK_BYTES * 4**index // nbytes
        execution, update = self.multiples
        if execution * nbytes <= SHORT_BYTES:
            most = max(most, execution)
        if self.stays_on_host:
            most = max(min(most, HOST_BLOCK_BYTES // nbytes), update)
        most -= most % (execution if execution <= most else update)
        return most if 0 < most < steps else steps

    def limit_at(self, position: int) -> int | None:
        """Returns the most steps of a block that begins at `position` in the epoch; None: no limit.

        With replicas every update begins a round, so a block within an update ends with it.
        """
        left = -position % self.multiples[1]
        return left if self.replicas > 1 and left else None


def stacked_blocks(
    batches: Iterator[ArrayTree],
    sizes: Iterable[int],
    shape: BlockShape,
    destination: Destination,
    is_awaited: Callable[[], bool] = lambda: True,
) -> Iterator[Block]:
    """Stacks batches as they arrive.

    A block ends with an execution if a block is awaited. If batches arrive faster than they are
    used, it continues with the next executions: a hand-over costs more than a short step. It ends
    early where shapes change or the data ends.

    Args:
        batches: batches of a data adapter.
        sizes: steps of each execution.
        shape: bounds of a block.
        destination: devices or host memory of the blocks.
        is_awaited: returns whether the consumer has no block left.
    """
    specs = SpecReader()
    stack: _Stack | None = None
    position = 0  # steps since the epoch began
    for size in sizes:
        for left in range(size, 0, -1):
            try:
                batch = next(batches)
                spec = specs.read(batch)
            except BaseException as error:
                # The batches before the end, or before an error, are trained first.
                if stack is not None:
                    yield stack.block()
                if isinstance(error, StopIteration):
                    return
                raise
            if stack is not None and stack.spec != spec:
                yield stack.block()
                stack = None
            if stack is None:
                first = position % shape.replicas
                capacity = shape.capacity(spec, first + left)
                stack = _Stack(spec, capacity, shape.limit_at(position), first, destination)
            stack.add(batch)
            position += 1
            if stack.free == 0 or (left == 1 and (stack.free < size or is_awaited())):
                yield stack.block()
                stack = None
    if stack is not None:
        yield stack.block()


def block_of_one(batch: ArrayTree, spec: BatchSpec) -> Block:
    """Returns a block of one batch in host memory, which shares JAX's arrays: they never change."""
    leaves = [
        (np.asarray(leaf) if isinstance(leaf, jax.Array) else np.array(leaf, dtype))[None]
        for leaf, dtype in zip(jax.tree.leaves(batch), spec.dtypes, strict=True)
    ]
    return Block(jax.tree.unflatten(spec.treedef, leaves), spec, capacity=1, steps=1)


class _Stack:
    """A block that is being filled."""

    def __init__(
        self,
        spec: BatchSpec,
        capacity: int,
        most: int | None,
        first: int,
        destination: Destination,
    ):
        self.spec = spec
        self._capacity = capacity
        self._first = first
        self._most = capacity - first if most is None else min(most, capacity - first)
        self._destination = destination
        self._leaves = empty_block(spec, destination.lead(capacity))
        self._steps = 0

    @property
    def free(self) -> int:
        return self._most - self._steps

    def add(self, batch: ArrayTree) -> None:
        index = self._index(self._first + self._steps)
        self._steps += 1
        if index is None:
            return
        # Copied at once: a generator may fill the same buffer for its next batch.
        for target, leaf in zip(self._leaves, jax.tree.leaves(batch), strict=True):
            target[index] = leaf

    def block(self) -> Block:
        replicas, end = self._destination.replicas, self._first + self._steps
        for step in (*range(self._first), *range(end, -(-end // replicas) * replicas)):
            # The padding of a round is computed with, and its results do not count.
            if (index := self._index(step)) is not None:
                for target in self._leaves:
                    target[index] = 0
        return make_block(
            self._leaves,
            self.spec,
            self._capacity,
            self._steps,
            self._destination,
            self._first,
        )

    def _index(self, step: int) -> int | tuple[int, int] | None:
        """Returns the index of a step's batch; None if another process has its replica."""
        if self._destination.replicas == 1:
            return step
        round_, replica = divmod(step, self._destination.replicas)
        kept = self._destination.kept
        return (round_, kept.index(replica)) if replica in kept else None


class ResidentArrays:
    """A data set that stays on the devices, which gather its batches."""

    def __init__(self, arrays: ArrayTree, destination: Destination):
        """Moves `arrays` to the devices; leaves are `[rows, ...]`, with equal rows."""
        self._destination = destination
        self.spec = batch_spec(arrays)
        self.rows = self.spec.rows
        leaves = [
            np.asarray(leaf, dtype)
            for leaf, dtype in zip(jax.tree.leaves(arrays), self.spec.dtypes, strict=True)
        ]
        # On CPU the device's memory is the host's, and NumPy copies rows several times faster
        # than XLA's CPU gather does.
        self._on_host = destination.is_host_memory
        whole = destination.group.whole
        self._leaves: Any = leaves if self._on_host else [put_on(leaf, whole) for leaf in leaves]

    def blocks(self, order: np.ndarray, batch_size: int, shape: BlockShape) -> Iterator[Block]:
        """Yields blocks of full batches in `order`, and one of the smaller last batch.

        Args:
            order: row numbers of one epoch.
            batch_size: rows of a full batch.
            shape: bounds of a block.
        """
        full, remainder = divmod(len(order), batch_size)
        of_batch = self.spec.of_rows(batch_size)
        done = index = 0  # steps, blocks
        while done < full:
            capacity = shape.capacity(of_batch, full - done)
            steps = min(capacity, full - done)
            if self._on_host:
                steps = shape.steps_of(index, of_batch, steps)
            rows = order[done * batch_size : (done + steps) * batch_size]
            yield self._gather(rows.reshape(steps, batch_size), of_batch, capacity)
            done += steps
            index += 1
        if remainder:
            rows, of_rest = order[full * batch_size :], self.spec.of_rows(remainder)
            yield self._gather(rows[None], of_rest, shape.replicas, full % shape.replicas)

    def _gather(self, rows: np.ndarray, spec: BatchSpec, capacity: int, first: int = 0) -> Block:
        steps, destination = len(rows), self._destination
        if destination.replicas > 1 or not self._on_host:
            # Steps that pad a round, or a block on an accelerator, repeat row 0.
            filled = destination.replicas if self._on_host else capacity
            padded = np.zeros((-(-(first + steps) // filled) * filled, rows.shape[1]), np.int32)
            padded[first : first + steps] = rows
            rows = padded
        if destination.replicas > 1:
            rows = rows.reshape(-1, destination.replicas, rows.shape[1])[:, list(destination.kept)]
        if self._on_host:
            # The tasks of a pipeline take batches one by one, whatever the capacity.
            room = len(rows) * destination.replicas if destination.stays_on_host else capacity
            leaves = empty_block(spec, destination.lead(room))
            for target, source in zip(leaves, self._leaves, strict=True):
                # "clip" lets NumPy write into `out` directly; the row numbers are in range.
                np.take(source, rows, axis=0, out=target[: len(rows)], mode="clip")
            return make_block(leaves, spec, capacity, steps, destination, first)
        taken = _take_rows(self._leaves, *destination.put([rows]))
        return Block(jax.tree.unflatten(spec.treedef, taken), spec, capacity, steps, first)


@jax.jit
def _take_rows(leaves: list[jax.Array], rows: jax.Array) -> list[jax.Array]:
    return [leaf.at[rows].get(mode="promise_in_bounds") for leaf in leaves]
