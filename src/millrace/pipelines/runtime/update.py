"""One update of a pipelined model: the parts of it that each stage runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.compiling.executable import Executable
from millrace.devices import DeviceGroup
from millrace.pipelines.programs.split_update import Part
from millrace.pipelines.programs.stage import Slot
from millrace.pipelines.programs.stage_taps import Bundle, bundle_of_update
from millrace.pipelines.programs.stages import StageBuilder
from millrace.pipelines.runtime.stage_state import StageState
from millrace.pipelines.runtime.tasks import Find
from millrace.pipelines.runtime.update_moves import Known, UpdateMoves


class StageUpdate:
    """Updates the weights of each stage where they live."""

    def __init__(self, builder: StageBuilder, groups: Sequence[DeviceGroup], find: Find):
        self._builder = builder
        self._find = find
        self._update = builder.update
        self._last = len(groups) - 1
        self._here = [bool(group.local) for group in groups]
        self._moves = UpdateMoves(builder, groups)
        self._found: dict[tuple[str, int], tuple[Executable, list[Slot]]] = {}
        self.tapped: list[tuple[Bundle, list[Any]]] = []  # by the last update
        self._taps = {
            stage: bundle_of_update(self._update.taps, part, stage)
            for stage, part in self._update.final.items()
        }
        shared = self._update.shared is not None
        # Calls of compiled code in one update.
        self.dispatches = len(self._update.partial) + shared + len(self._update.final)

    def home_of(self, key: Any) -> int | None:
        """Returns the stage at which the update taps a value of one leaf; None if it does not."""
        taps = self._taps.items()
        return next((stage for stage, each in taps if each and (key, 0) in each.leaves), None)

    def run(self, state: StageState, sums: Sequence[Sequence[Any]], scale: np.float32) -> Any:
        """Applies the accumulated gradients, and returns something that is ready once they are.

        Args:
            state: gets the new weights and optimizer state.
            sums: accumulated gradients, by stage and place in `Stage.trainable`; none of a stage
                that is not here.
            scale: what a gradient is multiplied by.
        """
        update = self._update
        known: Known = {(Slot("scale", 0), None): scale}
        number = 0
        for stage, gradients in zip(self._builder.split.stages, sums, strict=True):
            for place, array in enumerate(gradients):
                known[Slot("gradient", number + place), None] = array
            number += len(stage.trainable)
        self._moves.begin(known, state)
        for stage, part in update.partial.items():
            self._run("partial", stage, part, known, state)
        self._moves.after_partial(known)
        if update.shared is not None:
            self._run("shared", self._last, update.shared, known, state)
        self._moves.after_shared(known)
        final = {stage: part for stage, part in update.final.items() if self._here[stage]}
        # All inputs first: a stage's results take over the memory of its old values.
        inputs = {stage: self._inputs(part, stage, known, state) for stage, part in final.items()}
        probes, self.tapped = [], []
        for stage, part in final.items():
            *outputs, probe = self._call("final", stage, part, inputs[stage])
            probes.append(probe)
            if (taps := self._taps[stage]) is not None:
                self.tapped.append((taps, outputs[len(part.outputs) :]))
                del outputs[len(part.outputs) :]
            for slot, value in zip(part.outputs, outputs, strict=True):
                state[slot] = value
        self._moves.after_final(state)
        state.refresh()
        return probes

    def _run(self, name: str, stage: int, part: Part, known: Known, state: StageState) -> None:
        if self._here[stage]:
            *outputs, _ = self._call(name, stage, part, self._inputs(part, stage, known, state))
            known.update(((s, None), v) for s, v in zip(part.outputs, outputs, strict=True))

    def _inputs(self, part: Part, stage: int, known: Known, state: StageState) -> dict[Slot, Any]:
        values: dict[Slot, Any] = {}
        for slot in part.inputs:
            if (slot, stage) in known:  # from another process
                values[slot] = known[slot, stage]
            elif (slot, None) not in known:
                values[slot] = state.at(slot, stage)
            elif slot.role == "scale":
                values[slot] = known[slot, None]  # a number on the host
            else:
                values[slot] = state.lay(known[slot, None], slot, stage)
        return values

    def _call(self, name: str, stage: int, part: Part, values: dict[Slot, Any]) -> list[Any]:
        if (name, stage) not in self._found:
            run = self._find(name, stage, lambda: self._builder.part(name, stage, part))
            self._found[name, stage] = run, self._builder.replaced(part)
        run, replaced = self._found[name, stage]
        others = [value for slot, value in values.items() if slot not in replaced]
        return run([values[slot] for slot in replaced], others)
