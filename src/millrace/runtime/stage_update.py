"""One update of a pipelined model: the parts of it that each stage runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from millrace.compiling.executable import Executable
from millrace.graph.split_update import Part
from millrace.graph.stage import Slot
from millrace.programs.stages import StageBuilder
from millrace.runtime.stage_state import StageState
from millrace.runtime.stage_tasks import Find


class StageUpdate:
    """Updates the weights of each stage where they live."""

    def __init__(self, builder: StageBuilder, find: Find):
        self._builder = builder
        self._find = find
        self._update = builder.update
        self._last = len(builder.split.stages) - 1
        self._found: dict[tuple[str, int], tuple[Executable, list[Slot]]] = {}
        shared = self._update.shared is not None
        # Calls of compiled code in one update.
        self.dispatches = len(self._update.partial) + shared + len(self._update.final)

    def run(self, state: StageState, sums: Sequence[Sequence[Any]], scale: np.float32) -> Any:
        """Applies the accumulated gradients, and returns something that is ready once they are.

        Args:
            state: gets the new weights and optimizer state.
            sums: accumulated gradients, by stage and place in `Stage.trainable`.
            scale: what a gradient is multiplied by.
        """
        gradients = [gradient for stage in sums for gradient in stage]
        known: dict[Slot, Any] = {Slot("scale", 0): scale}
        known.update((Slot("gradient", k), array) for k, array in enumerate(gradients))
        update = self._update
        for stage, part in update.partial.items():
            self._run("partial", stage, part, known, state)
        if update.shared is not None:
            self._run("shared", self._last, update.shared, known, state)
        # All inputs first: a stage's results take over the memory of its old values.
        inputs = {
            stage: self._inputs(part, stage, known, state) for stage, part in update.final.items()
        }
        probes = []
        for stage, part in update.final.items():
            *outputs, probe = self._call("final", stage, part, inputs[stage])
            probes.append(probe)
            for slot, value in zip(part.outputs, outputs, strict=True):
                state[slot] = value
        state.refresh()
        return probes

    def _run(
        self, name: str, stage: int, part: Part, known: dict[Slot, Any], state: StageState
    ) -> None:
        *outputs, _ = self._call(name, stage, part, self._inputs(part, stage, known, state))
        known.update(zip(part.outputs, outputs, strict=True))

    def _inputs(
        self, part: Part, stage: int, known: dict[Slot, Any], state: StageState
    ) -> dict[Slot, Any]:
        values: dict[Slot, Any] = {}
        for slot in part.inputs:
            if slot not in known:
                values[slot] = state.at(slot, stage)
            elif slot.role == "scale":
                values[slot] = known[slot]  # a number on the host
            else:
                values[slot] = state.lay(known[slot], slot, stage)
        return values

    def _call(self, name: str, stage: int, part: Part, values: dict[Slot, Any]) -> list[Any]:
        if (name, stage) not in self._found:
            run = self._find(name, stage, lambda: self._builder.part(name, stage, part))
            self._found[name, stage] = run, self._builder.replaced(part)
        run, replaced = self._found[name, stage]
        others = [value for slot, value in values.items() if slot not in replaced]
        return run([values[slot] for slot in replaced], others)
