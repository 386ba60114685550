"""The arrays in flight between the tasks of a pipeline.

    carried      values on their way to a later stage, by (stage, micro-batch)
    cotangents   of these values, on their way back, by (stage, micro-batch)
    held         arrays that a forward leaves for its backward
    kept         arrays that backward_input leaves for backward_weight
    sums         gradients added up by stage, which stay

Taking an array removes it: its memory is free as soon as the task that took it has run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from millrace.run.pipelines.programs.split import Arrays
from millrace.run.pipelines.programs.stage_taps import Bundle
from millrace.run.timing.measurement import Measurement

StageMicroBatch = tuple[int, int]  # stage, micro-batch
# Of backward_weight: held arrays, cotangents, results of backward_input.
Kept = tuple[Arrays, Arrays, Arrays]
TreeMove = Callable[[Any], Any]  # copies the arrays of a structure to another memory


class Buffers:
    """Arrays that wait for the task that takes them; the device may still be computing them."""

    def __init__(self) -> None:
        self._carried: dict[StageMicroBatch, dict[int, jax.Array]] = {}
        self._cotangents: dict[StageMicroBatch, dict[tuple[int, int], jax.Array]] = {}
        self._held: dict[StageMicroBatch, Arrays] = {}
        self._kept: dict[StageMicroBatch, Kept] = {}
        self.sums: list[Arrays] = []
        self._sets: dict[int, int] = {}
        self.newest: jax.Array | None = None  # the value sent last
        # Tapped values, for the host: micro-batch, description, arrays.
        self.tapped: list[tuple[int, Bundle, Arrays]] = []
        self.peaks: dict[int, int] = {}  # most activation sets that a stage held at once
        self.measurement: Measurement | None = None  # of the running tasks

    def send(self, stage: int, micro_batch: int, number: int, array: jax.Array) -> None:
        """Leaves a value for a later stage."""
        self._carried.setdefault((stage, micro_batch), {})[number] = array
        self.newest = array

    def take_carried(self, stage: int, micro_batch: int, numbers: Sequence[int]) -> Arrays:
        """Returns values by their numbers."""
        if not numbers:
            return []
        arrays = self._carried.pop((stage, micro_batch))
        return [arrays[number] for number in numbers]

    def answer(self, stage: int, micro_batch: int, key: tuple[int, int], array: jax.Array) -> None:
        """Leaves a cotangent, of (value, consumer), for an earlier stage."""
        self._cotangents.setdefault((stage, micro_batch), {})[key] = array

    def take_cotangents(
        self, stage: int, micro_batch: int, keys: Sequence[tuple[int, int]]
    ) -> Arrays:
        """Returns cotangents by value and consumer."""
        if not keys:
            return []
        arrays = self._cotangents.pop((stage, micro_batch))
        return [arrays[key] for key in keys]

    def hold(self, stage: int, micro_batch: int, arrays: Arrays) -> None:
        """Leaves the arrays of a forward that its backward needs."""
        self._held[stage, micro_batch] = arrays
        self._count(stage, 1)

    def take_held(self, stage: int, micro_batch: int) -> Arrays:
        """Returns the arrays of a forward that its backward needs."""
        self._count(stage, -1)
        return self._held.pop((stage, micro_batch))

    def keep(self, stage: int, micro_batch: int, arrays: Kept) -> None:
        """Leaves the arrays that backward_weight needs after backward_input."""
        self._kept[stage, micro_batch] = arrays
        self._count(stage, 1)

    def take_kept(self, stage: int, micro_batch: int) -> Kept:
        """Returns the arrays that backward_weight needs."""
        self._count(stage, -1)
        return self._kept.pop((stage, micro_batch))

    def replace(self, stage: int, micro_batch: int, move: TreeMove) -> None:
        """Replaces the arrays that wait for a backward of `stage` by `move` of them."""
        key = stage, micro_batch
        if key in self._held:
            self._held[key] = move(self._held[key])
        if key in self._kept:
            self._kept[key] = move(self._kept[key])

    def nbytes(self) -> int:
        """Bytes of all waiting arrays, each counted once."""
        arrays: dict[int, int] = {}
        stores = (self._carried, self._cotangents)
        groups = [list(group.values()) for store in stores for group in store.values()]
        groups += [list(group) for group in self._held.values()]
        groups += [list(some) for group in self._kept.values() for some in group]
        for group in groups:
            arrays.update((id(array), array.nbytes) for array in group)
        return sum(arrays.values())

    def _count(self, stage: int, change: int) -> None:
        sets = self._sets.get(stage, 0) + change
        self._sets[stage] = sets
        if sets > self.peaks.get(stage, 0):
            self.peaks[stage] = sets
