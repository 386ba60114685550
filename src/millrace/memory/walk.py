"""What each device of a pipeline holds while the tasks of an update run, one after another.

    task       0F0      1F0          1B0          0B0
    device 0   held     held         held         -          what backward needs of a forward
    device 1            value, held  held         -          and what comes from another stage

It follows `pipelines/runtime/buffers.py`: an array is there from the task that makes it, or sends
it, to the last one that takes it. To this comes what rests, and what the running program needs.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.pipelines.programs.passes import Passes
from millrace.pipelines.programs.split import Split
from millrace.schedules.task import Pass, Task

Kind = tuple[int, str]  # stage, "batches" or "in flight"


@dataclass(frozen=True, slots=True)
class StageSizes:
    """Bytes of one stage on one device, for one micro-batch."""

    batch: Mapping[int, int]  # by leaf
    held: Sequence[int]  # as in `Passes.held`
    kept: int  # what backward_input leaves for backward_weight
    own: Mapping[str, int]  # by program: results and temporaries, less what they take over


@dataclass(frozen=True, slots=True)
class PeakMoment:
    """The peak of a device."""

    nbytes: int  # besides what rests there
    stage: int
    program: str
    held: Mapping[Kind, int]
    own: int  # bytes of the program that runs


class UpdateWalk:
    """Goes through the tasks of an update, and notes the peak of each device."""

    def __init__(
        self,
        split: Split,
        passes: Callable[[int], Passes],
        sizes: Sequence[StageSizes],
        places: Sequence[Hashable],
    ):
        """Holds nothing yet.

        Args:
            split: the stages, and what passes between them.
            passes: of a stage.
            sizes: of each stage.
            places: the device of each stage.
        """
        self._split, self._passes, self._sizes, self._places = split, passes, sizes, places
        # By device and array: bytes, what for, how many will take it.
        self._arrays: dict[Hashable, dict[Any, tuple[int, Kind, int]]] = {p: {} for p in places}
        self._totals: Counter[Hashable] = Counter()
        self._waiting: dict[tuple[str, int, int], list[Any]] = {}
        self.peaks: dict[Hashable, PeakMoment] = {}

    def run(self, order: Iterable[Task], ends: Iterable[tuple[str, int]]) -> None:
        """Runs the tasks, and then the programs of the update, given by name and stage."""
        steps = {
            Pass.FORWARD: self._forward,
            Pass.BACKWARD: self._backward,
            Pass.BACKWARD_INPUT: self._backward_input,
            Pass.BACKWARD_WEIGHT: self._backward_weight,
        }
        for task in order:
            steps[task.kind](task.stage, task.micro_batch)
        for name, stage in ends:
            self._look(stage, name)

    def _forward(self, index: int, number: int) -> None:
        stage, passes, sizes = self._split.stages[index], self._passes(index), self._sizes[index]
        batch = [(number, "batch", leaf) for leaf in stage.batch]
        for key in batch:
            self._hold(index, key, sizes.batch[key[2]], "batches")
        self._look(index, "forward")
        held = []
        names = {"batch": stage.batch, "carried": stage.carried, "sent": stage.sent}
        for (source, place), nbytes in zip(passes.held, sizes.held, strict=True):
            if source == "residual":
                key: Any = (number, "residual", index, place)
            else:
                what = "batch" if source == "batch" else "value"
                key = (number, what, names[source][place])
            self._hold(index, key, nbytes, "batches" if source == "batch" else "in flight")
            held.append(key)
        self._waiting["held", index, number] = held
        for value in stage.sent:
            for consumer in self._split.values[value].consumers:
                nbytes = self._split.values[value].nbytes
                self._hold(consumer, (number, "value", value), nbytes, "in flight")
        for key in (*batch, *((number, "value", value) for value in stage.carried)):
            self._drop(index, key)

    def _backward(self, index: int, number: int) -> None:
        self._look(index, "backward")
        self._drop_all(index, "held", number)
        self._drop_all(index, "cotangent", number)
        self._answer(index, number)

    def _backward_input(self, index: int, number: int) -> None:
        if self._passes(index).returns:
            self._look(index, "backward_input")
            self._hold(index, (number, "kept", index), self._sizes[index].kept, "in flight")
            self._waiting["kept", index, number] = [(number, "kept", index)]
        passes = self._passes(index)
        held = self._waiting.pop(("held", index, number))
        rest = [held[k] for k in passes.weight_held]
        self._waiting["held", index, number] = rest
        for place, key in enumerate(held):
            if place not in passes.weight_held:
                self._drop(index, key)
        self._answer(index, number)

    def _backward_weight(self, index: int, number: int) -> None:
        self._look(index, "backward_weight")
        for kind in ("held", "kept", "cotangent"):
            self._drop_all(index, kind, number)

    def _answer(self, index: int, number: int) -> None:
        for value in self._passes(index).returns:
            producer = self._split.values[value].producer
            key = (number, "cotangent", value, index)
            self._hold(producer, key, self._split.values[value].nbytes, "in flight")
            self._waiting.setdefault(("cotangent", producer, number), []).append(key)

    def _look(self, index: int, program: str) -> None:
        place, own = self._places[index], self._sizes[index].own.get(program, 0)
        total = self._totals[place] + own
        before = self.peaks.get(place)
        if before is None or total > before.nbytes:
            held: Counter[Kind] = Counter()
            for nbytes, kind, _ in self._arrays[place].values():
                held[kind] += nbytes
            self.peaks[place] = PeakMoment(total, index, program, dict(held), own)

    def _hold(self, index: int, key: Any, nbytes: int, kind: str) -> None:
        place = self._places[index]
        arrays = self._arrays[place]
        known = arrays.get(key)
        if known is None:
            arrays[key] = (nbytes, (index, kind), 1)
            self._totals[place] += nbytes
        else:
            arrays[key] = (*known[:2], known[2] + 1)

    def _drop(self, index: int, key: Any) -> None:
        place = self._places[index]
        nbytes, kind, takers = self._arrays[place].pop(key)
        if takers > 1:
            self._arrays[place][key] = (nbytes, kind, takers - 1)
        else:
            self._totals[place] -= nbytes

    def _drop_all(self, index: int, kind: str, number: int) -> None:
        for key in self._waiting.pop((kind, index, number), ()):
            self._drop(index, key)
