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
        # By device and array: bytes, kind, and the number of tasks that will take it.
        self._arrays: dict[Hashable, dict[ArrayKey, tuple[int, HeldKind, int]]] = {
            device: {} for device in devices
        }
        self._totals: Counter[Hashable] = Counter()
        self._waiting: dict[tuple[str, int, int], list[ArrayKey]] = {}
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
        for (source, position), nbytes in zip(passes.held, sizes.held, strict=True):
            if source == "residual":
                key: ArrayKey = (number, "residual", index, position)
            else:
                what = "batch" if source == "batch" else "value"
                key = (number, what, names[source][position])
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
        for_weights = [held[k] for k in passes.weight_held]
        # Arrivals are in the order of the stages that sent them, not in that of the pass.
        wanted = {passes.cotangents[k] for k in passes.weight_cotangents}
        arrived = self._waiting.pop(("cotangent", index, number), [])
        self._waiting["held", index, number] = for_weights
        self._waiting["cotangent", index, number] = [k for k in arrived if k[2:] in wanted]
        for position, key in enumerate(held):
            if position not in passes.weight_held:
                self._drop(index, key)
        for key in arrived:
            if key[2:] not in wanted:
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
        array = arrays.get(key)
        if array is None:
            arrays[key] = (nbytes, (index, kind), 1)
            self._totals[device] += nbytes
        else:
            arrays[key] = (*array[:2], array[2] + 1)

    def _drop(self, index: int, key: ArrayKey) -> None:
        device = self._devices[index]
        nbytes, kind, takers = self._arrays[device].pop(key)
        if takers > 1:
            self._arrays[device][key] = (nbytes, kind, takers - 1)
        else:
            self._totals[device] -= nbytes

    def _drop_all(self, index: int, kind: str, number: int) -> None:
        for key in self._waiting.pop((kind, index, number), ()):
            self._drop(index, key)
