"""The values on each device of a pipeline while the tasks of an update run, one after another.

    task       0F0      1F0          1B0          0B0
    device 0   held     held         held         -          values that backward needs
    device 1            value, held  held         -          and values of another stage

The walk follows `run/pipelines/runtime/buffers.py`: an array exists from the task that makes or
sends it to the last one that takes it. Resident values and the running program come on top of it.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.run.pipelines.programs.passes import Passes
from millrace.run.pipelines.programs.split import Split
from millrace.run.schedules.task import Pass, Task

ArrayKey = tuple[int | str, ...]  # micro-batch, "value", index
HeldKind = tuple[int, str]  # stage, "batches" or "in flight"


@dataclass(frozen=True, slots=True)
class StageSizes:
    """Bytes of one stage on one device, for one micro-batch."""

    batch: Mapping[int, int]  # by leaf
    held: Sequence[int]  # as in `Passes.held`
    kept: int  # left by backward_input for backward_weight
    own: Mapping[str, int]  # by program: results and temporaries, less reused arguments


@dataclass(frozen=True, slots=True)
class PeakMoment:
    """The peak of a device."""

    nbytes: int  # besides resident values
    stage: int
    program: str
    held: Mapping[HeldKind, int]
    own: int  # bytes of the program that runs


class UpdateWalk:
    """Goes through the tasks of an update, and records the peak of each device."""

    def __init__(
        self,
        split: Split,
        passes: Callable[[int], Passes],
        sizes: Sequence[StageSizes],
        devices: Sequence[Hashable],
    ):
        """Starts with no values.

        Args:
            split: the stages, and the values that pass between them.
            passes: of a stage.
            sizes: of each stage.
            devices: the device of each stage.
        """
        self._split, self._passes, self._sizes, self._devices = split, passes, sizes, devices
        # By device and array: bytes, kind, and the stages that still take it.
        self._arrays: dict[Hashable, dict[ArrayKey, tuple[int, HeldKind, set[int]]]] = {
            device: {} for device in devices
        }
        self._totals: Counter[Hashable] = Counter()
        # By stage and micro-batch: what its backward takes, as far as it is there.
        self._waiting: dict[tuple[int, int], set[ArrayKey]] = {}
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
        stage, sizes = self._split.stages[index], self._sizes[index]
        batch = [(number, "batch", leaf) for leaf in stage.batch]
        for key in batch:
            self._hold(index, key, sizes.batch[key[2]], "batches")
        self._look(index, "forward")
        held = self._held(index, number)
        for key, nbytes in zip(held, sizes.held, strict=True):
            self._hold(index, key, nbytes, "batches" if key[1] == "batch" else "in flight")
        for value in stage.sent:
            for consumer in self._split.values[value].consumers:
                nbytes = self._split.values[value].nbytes
                self._hold(consumer, (number, "value", value), nbytes, "in flight")
        self._waiting.setdefault((index, number), set()).update(held)
        carried = [(number, "value", value) for value in stage.carried]
        self._drop(index, {*batch, *carried}.difference(held))

    def _held(self, index: int, number: int) -> list[ArrayKey]:
        """Returns the arrays that a forward leaves for its backward."""
        stage = self._split.stages[index]
        names = {"batch": stage.batch, "carried": stage.carried, "sent": stage.sent}
        return [
            (number, source, index, position)
            if source == "residual"
            else (number, "batch" if source == "batch" else "value", names[source][position])
            for source, position in self._passes(index).held
        ]

    def _backward(self, index: int, number: int) -> None:
        self._look(index, "backward")
        self._drop(index, self._waiting.pop((index, number)))
        self._answer(index, number)

    def _backward_input(self, index: int, number: int) -> None:
        passes, held = self._passes(index), self._held(index, number)
        waiting = self._waiting.pop((index, number))
        # What the other half takes, of what has come and what this half leaves.
        left = {held[k] for k in passes.weight_held}
        left |= {(number, "cotangent", *passes.cotangents[k]) for k in passes.weight_cotangents}
        if passes.returns:
            self._look(index, "backward_input")
            kept = (number, "kept", index)
            self._hold(index, kept, self._sizes[index].kept, "in flight")
            left.add(kept)
        self._waiting[index, number] = left
        self._drop(index, waiting - left)
        self._answer(index, number)

    def _backward_weight(self, index: int, number: int) -> None:
        self._look(index, "backward_weight")
        self._drop(index, self._waiting.pop((index, number)))

    def _answer(self, index: int, number: int) -> None:
        for value in self._passes(index).returns:
            producer = self._split.values[value].producer
            key = (number, "cotangent", value, index)
            self._hold(producer, key, self._split.values[value].nbytes, "in flight")
            self._waiting.setdefault((producer, number), set()).add(key)

    def _look(self, index: int, program: str) -> None:
        device, own = self._devices[index], self._sizes[index].own.get(program, 0)
        total = self._totals[device] + own
        before = self.peaks.get(device)
        if before is None or total > before.nbytes:
            held: Counter[HeldKind] = Counter()
            for nbytes, kind, _ in self._arrays[device].values():
                held[kind] += nbytes
            self.peaks[device] = PeakMoment(total, index, program, dict(held), own)

    def _hold(self, index: int, key: ArrayKey, nbytes: int, kind: str) -> None:
        device = self._devices[index]
        arrays = self._arrays[device]
        if key not in arrays:
            arrays[key] = (nbytes, (index, kind), set())
            self._totals[device] += nbytes
        arrays[key][2].add(index)

    def _drop(self, index: int, keys: Iterable[ArrayKey]) -> None:
        device = self._devices[index]
        for key in keys:
            nbytes, _, takers = self._arrays[device][key]
            takers.discard(index)
            if not takers:
                del self._arrays[device][key]
                self._totals[device] -= nbytes
