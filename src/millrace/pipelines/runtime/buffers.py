"""What is in flight between the tasks of a pipeline.

    carried      values on their way to a later stage, by (stage, micro-batch)
    cotangents   what comes back for them, by (stage, micro-batch)
    held         what a stage keeps of a forward until its backward has run
    kept         what backward_input leaves for backward_weight

All of it is dropped when it is taken: its memory is free as soon as the task that took it ran.
"""

from collections.abc import Callable, Sequence
from typing import Any

from millrace.pipelines.programs.stage_taps import Bundle

StageMicroBatch = tuple[int, int]  # stage, micro-batch


class Buffers:
    """Arrays that wait for the task that takes them. They may still be being computed."""

    def __init__(self) -> None:
        self._carried: dict[StageMicroBatch, dict[int, Any]] = {}
        self._cotangents: dict[StageMicroBatch, dict[tuple[int, int], Any]] = {}
        self._held: dict[StageMicroBatch, Any] = {}
        self._kept: dict[StageMicroBatch, Any] = {}
        self._sets: dict[int, int] = {}
        self.newest: Any = None  # the value sent last
        # What was tapped, for the host: micro-batch, what it is, and arrays that are small or that
        # somebody wanted.
        self.tapped: list[tuple[int, Bundle, list[Any]]] = []
        self.peaks: dict[int, int] = {}  # most activation sets that a stage held at once

    def send(self, stage: int, micro_batch: int, number: int, array: Any) -> None:
        """Puts a value where `stage` will take it."""
        self._carried.setdefault((stage, micro_batch), {})[number] = array
        self.newest = array

    def take_carried(self, stage: int, micro_batch: int, numbers: Sequence[int]) -> list[Any]:
        """Returns values by their numbers."""
        if not numbers:
            return []
        arrays = self._carried.pop((stage, micro_batch))
        return [arrays[number] for number in numbers]

    def answer(self, stage: int, micro_batch: int, key: tuple[int, int], array: Any) -> None:
        """Puts a cotangent, of (value, consumer), where `stage` will take it."""
        self._cotangents.setdefault((stage, micro_batch), {})[key] = array

    def take_cotangents(
        self, stage: int, micro_batch: int, keys: Sequence[tuple[int, int]]
    ) -> list[Any]:
        """Returns cotangents by value and consumer."""
        if not keys:
            return []
        arrays = self._cotangents.pop((stage, micro_batch))
        return [arrays[key] for key in keys]

    def hold(self, stage: int, micro_batch: int, arrays: Any) -> None:
        """Keeps what backward needs of a forward."""
        self._held[stage, micro_batch] = arrays
        self._count(stage, 1)

    def take_held(self, stage: int, micro_batch: int) -> Any:
        """Returns what backward needs of its forward."""
        self._count(stage, -1)
        return self._held.pop((stage, micro_batch))

    def keep(self, stage: int, micro_batch: int, arrays: Any) -> None:
        """Keeps what backward_weight needs of the backward_input before it."""
        self._kept[stage, micro_batch] = arrays
        self._count(stage, 1)

    def take_kept(self, stage: int, micro_batch: int) -> Any:
        """Returns what backward_weight needs."""
        self._count(stage, -1)
        return self._kept.pop((stage, micro_batch))

    def replace(self, stage: int, micro_batch: int, move: Callable[[Any], Any]) -> None:
        """Replaces what waits for a backward of `stage` by what `move` makes of it."""
        for store in (self._held, self._kept):
            if (stage, micro_batch) in store:
                store[stage, micro_batch] = move(store[stage, micro_batch])

    def nbytes(self) -> int:
        """Bytes of all arrays that wait, each counted once."""
        arrays: dict[int, int] = {}
        stores = (self._carried, self._cotangents)
        groups = [list(group.values()) for store in stores for group in store.values()]
        groups += [list(group) for group in self._held.values()]
        groups += [list(part) for group in self._kept.values() for part in group]
        for group in groups:
            arrays.update((id(array), array.nbytes) for array in group)
        return sum(arrays.values())

    def _count(self, stage: int, change: int) -> None:
        sets = self._sets.get(stage, 0) + change
        self._sets[stage] = sets
        if sets > self.peaks.get(stage, 0):
            self.peaks[stage] = sets
