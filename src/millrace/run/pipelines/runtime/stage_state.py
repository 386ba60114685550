"""The values of a pipelined model's variables while an execution runs: each at its stage."""

from collections.abc import Mapping, Sequence

import jax

from millrace._compat.jax_arrays import free_unless_shared, uncommitted
from millrace.base.devices import DeviceGroup, put_on
from millrace.base.pytrees import Layout
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays, Slot
from millrace.run.pipelines.programs.stages import moves, state_groups
from millrace.run.pipelines.runtime.transfer import on_device


class StageState:
    """Splits a state over the stages, and puts it together again.

    Each value lives at one stage. A stage on another device that reads it has a copy, which is
    renewed when the value has changed. A value whose stage is in another process stays here as
    Keras gave it to the pipeline.
    """

    def __init__(
        self,
        state: State,
        builder: StageBuilder,
        owners: Mapping[Slot, int],
        groups: Sequence[DeviceGroup],
    ):
        """Moves each value to the devices of the stage that it lives at."""
        self._builder = builder
        # Of values at a stage, where some are offloaded to host memory.
        self._layouts: dict[tuple[Slot, int], Layout | None] = {}
        self.owners = owners
        # Copies of values that live in another process, by slot and the stage that reads them.
        self.copies: dict[tuple[Slot, int], jax.Array] = {}
        self._stages = builder.stages.split.stages
        self._groups = groups
        self._values: dict[str, Arrays] = {role: list(values) for role, values in state.items()}
        self._moved: list[jax.Array] = []  # as Keras gave them; their copies are in `_values`
        for role, values in self._values.items():
            for index, value in enumerate(values):
                slot = Slot(role, index)
                if slot in owners and groups[owners[slot]].local:
                    values[index] = self.lay(value, slot, owners[slot])
                    if values[index] is not value:
                        self._moved.append(value)
        groups_of_slots = [state_groups(stage) for stage in self._stages]
        self._fixed_slots = [fixed for fixed, _ in groups_of_slots]
        self._changing_slots = [changing for _, changing in groups_of_slots]
        # Inputs of forward and backward, by stage.
        self.weights: list[Arrays] = []
        self.fixed: list[Arrays] = []
        self.changing: list[Arrays] = [
            self._changing(stage, slots) if groups[stage].local else []
            for stage, slots in enumerate(self._changing_slots)
        ]
        self.refresh()

    def __getitem__(self, slot: Slot) -> jax.Array:
        return self._values[slot.role][slot.index]

    def __setitem__(self, slot: Slot, value: jax.Array) -> None:
        self._values[slot.role][slot.index] = value

    def lay(self, value: jax.Array, slot: Slot, stage: int) -> jax.Array:
        """Returns a value in its layout at `stage`: itself, or a copy that has been started."""
        if moves(self._builder.stages.plan):
            if (slot, stage) not in self._layouts:
                self._layouts[slot, stage] = self._builder.layouts.of(stage, slot)
            if (layout := self._layouts[slot, stage]) is not None:
                return put_on(value, layout)
        return on_device(value, self._groups[stage].devices[0])

    def at(self, slot: Slot, stage: int) -> jax.Array:
        """Returns a value of the state in its layout at `stage`."""
        copy = self.copies.get((slot, stage))
        return self.lay(self[slot], slot, stage) if copy is None else copy

    def free_moved(self) -> None:
        """Frees the memory of values of a training that have moved to their stages.

        Keras keeps the values from before an execution until it has ended. Like those that a
        program of the model in one piece takes over, they are of no use any more.
        """
        moved, self._moved = self._moved, []
        if self._values["optimizer"] and moved:
            values = [value for values in self._values.values() for value in values]
            free_unless_shared(jax.block_until_ready(moved), jax.block_until_ready(values))

    def refresh(self) -> None:
        """Gives the stages the values of the last update."""
        here = [bool(group.local) for group in self._groups]
        self.weights = [
            [self.at(Slot("trainable", k), stage.index) for k in stage.trainable] if is_here else []
            for stage, is_here in zip(self._stages, here, strict=True)
        ]
        self.fixed = [
            [self.at(slot, stage) for slot in slots] if here[stage] else []
            for stage, slots in enumerate(self._fixed_slots)
        ]

    def state(self) -> State:
        """Returns the state as Keras keeps it.

        Uncommitted, so that the model can still be called outside of the pipeline: JAX then
        gathers the values that live on different devices.
        """
        for slots, values in zip(self._changing_slots, self.changing, strict=True):
            for slot, value in zip(slots, values, strict=bool(values)):
                self[slot] = value
        return State().replace(
            **{role: map(uncommitted, values) for role, values in self._values.items()}
        )

    def metrics(self) -> tuple[Arrays]:
        """Returns the arguments of the program of logs: the metrics' values, at the last stage."""
        device = self._groups[-1].devices[0]
        return ([on_device(value, device) for value in self.state().metric],)

    def _changing(self, stage: int, slots: Sequence[Slot]) -> Arrays:
        del stage
        return [self[slot] for slot in slots]
