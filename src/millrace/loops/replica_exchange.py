"""Exchange of data between the host and a loop whose replicas run on devices of their own.

    device 0     call 0 -> iterations -> call 1 -> iterations -> call 2
    device 1       call 0 -> iterations -> call 1 -> iterations -> call 2
    host         elements of call 0     taps of call 0         taps of call 1

Each device calls the host by itself. The first one that makes a call decides how many iterations
follow; the others get the same number, each with the elements of its replica. Taps are delivered
when those of all replicas have arrived. Nobody waits for anybody.

Replicas of several processes agree on the smallest number that a process offers. Every process
goes through the same data, and has the taps of all replicas.
"""

import functools
import threading
from dataclasses import dataclass, field
from typing import Any

import jax
import keras
import numpy as np
from jax import lax
from jax.experimental import io_callback

from millrace.devices import REPLICA, DeviceGroup
from millrace.feeds.block import BlockSlice
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.exchange import ChunkTime, Exchange, Portion
from millrace.loops.replica_sums import of_all
from millrace.loops.replication import replication_index
from millrace.pytrees import Array, ArrayTree
from millrace.taps.taps import Tapped


@functools.cache
def host_order() -> keras.Variable:
    """Returns a counter of the calls of a program to the host.

    Programs of several devices cannot have ordered callbacks in JAX. Each call takes the number
    and returns the next one, so that calls come one after the other. It is a variable, so that
    loops and branches carry it.
    """
    return keras.Variable(np.int32(0), trainable=False, name="host_order")


@dataclass(slots=True)
class _ChunkCall:
    """One call of the replicas of this process."""

    portion: Portion | None = None
    values: dict[int, Any] = field(default_factory=dict)  # taps by replica


class ReplicaExchange(Exchange):
    """The host's side of one loop, which a call from each device reaches."""

    def __init__(
        self,
        infeed: InfeedQueue | None,
        tapped: Tapped,
        chunk_time: ChunkTime,
        group: DeviceGroup,
        may_end_early: bool,
    ):
        """Waits for the infeed's first element, for its shape.

        Args:
            infeed: of the loop; None without one.
            tapped: queues, and specs of their elements from one iteration of one replica.
            chunk_time: how long a chunk is to take.
            group: devices of the replicas.
            may_end_early: whether the loop may end before it has used all of a portion.
        """
        super().__init__(infeed, tapped, chunk_time, group.replicas, may_end_early)
        self._group = group
        self._lock = threading.Lock()
        self._calls: dict[int, _ChunkCall] = {}
        self._nothing = jax.tree.map(  # a block of one replica
            lambda leaf: np.zeros((leaf.shape[0], *leaf.shape[2:]), leaf.dtype), self.empty
        )

    def new_block(self) -> Any:
        """Returns a block for each replica of this process."""
        return {
            index: jax.tree.map(lambda leaf: np.empty_like(leaf), self._nothing)
            for index in self._group.local
        }

    def copy_elements(self, block: Any, taken: int, elements: BlockSlice) -> None:
        """Copies the elements of these replicas into their blocks."""
        sources: list[Array] = jax.tree.leaves(elements.block.batches)
        for index, own in block.items():
            first = (index - taken) % self.replicas
            row, end = (taken + first) // self.replicas, elements.start + elements.count
            targets: list[np.ndarray] = jax.tree.leaves(own)
            for target, source in zip(targets, sources, strict=True):
                mine = np.asarray(source)[elements.start + first : end : self.replicas]
                target[row : row + len(mine)] = mine

    def open(self) -> None:
        """Begins a run of the program."""
        self._calls.clear()
        super().open()

    def call(
        self,
        outs: tuple[ArrayTree, ...],
        used: jax.Array,
        remaining: jax.Array,
        order: jax.Array | None,
    ) -> tuple[tuple[ArrayTree, jax.Array, jax.Array], jax.Array | None]:
        """Adds a call of the host to the program of one replica.

        Args:
            outs: taps of the last chunk, `[capacity, ...]`.
            used: number of its iterations.
            remaining: number of iterations that remain.
            order: value of `host_order`.

        Returns:
            A block `[capacity, ...]`, the index of its first element, and the number of iterations
            of the next chunk, which is the same on all replicas; and the next value of
            `host_order`.
        """
        number = jax.ShapeDtypeStruct((), np.int32)
        blocks = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), self._nothing)
        if not self._group.is_local:
            outs = of_all(outs, axis=1)
        block, start, count, after = io_callback(
            self._on_host,
            (blocks, number, number, number),
            replication_index(),
            order,
            outs,
            used,
            remaining,
        )
        if not self._group.is_local:
            count = lax.pmin(count, REPLICA)
        return (block, start, count), after

    def _on_host(
        self,
        replica: np.ndarray,
        order: np.ndarray,
        outs: tuple[ArrayTree, ...],
        used: np.ndarray,
        remaining: np.ndarray,
    ) -> tuple[ArrayTree, np.int32, np.int32, np.int32]:
        index, number, iterations = int(replica), int(order), int(used)
        with self._lock:
            call = self._calls.setdefault(number, _ChunkCall())
            if call.portion is None:
                self.give_back(iterations)
                self.end_chunk(iterations)
                call.portion = self.portion(int(remaining))
            # Copied: the program reuses the memory.
            call.values[index] = jax.tree.map(
                lambda leaf: np.array(np.asarray(leaf)[:iterations]), outs
            )
            if len(call.values) == len(self._group.local):
                del self._calls[number]
                self.receive(self._stacked(call.values), iterations)
            portion = call.portion
        # Without an infeed, or where the loop ends, there is no block for each replica.
        has_block = self.infeed is not None and portion.iterations
        block = portion.block[index] if has_block else self._nothing
        return block, np.int32(portion.start), np.int32(portion.iterations), np.int32(number + 1)

    def _stacked(self, values: dict[int, Any]) -> Any:
        """Returns the taps of all replicas, `[iterations, R, ...]`."""
        parts = [values[index] for index in self._group.local]
        if not self._group.is_local:
            return parts[0]  # each has those of all
        return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *parts)
