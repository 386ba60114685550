"""The values of a pipelined model's variables while an execution runs: each at its stage."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from millrace._compat.jax import uncommitted
from millrace.graph.stage import Slot, Split
from millrace.plan import Mode
from millrace.programs.split_step import ROLES
from millrace.programs.stages import state_groups
from millrace.programs.state import State, Values
from millrace.runtime.transfer import on_device


class StageState:
    """Takes a state apart, holds what the stages take of it, and puts it together again.

    A value lives at one stage. A stage on another device that reads it has a copy, which is made
    anew when the value has changed.
    """

    def __init__(
        self,
        mode: Mode,
        state: State,
        split: Split,
        owners: Mapping[Slot, int],
        devices: Sequence[jax.Device],
    ):
        """Moves each value to the device of the stage that it lives at."""
        self._roles = ROLES[mode]
        self._split = split
        self._devices = devices
        self._values: dict[str, list[Any]] = {
            role: list(values) for role, values in zip(self._roles, state, strict=True)
        }
        for role, values in self._values.items():
            for index, value in enumerate(values):
                stage = owners.get(Slot(role, index))
                if stage is not None:
                    values[index] = on_device(value, devices[stage])
        groups = [state_groups(stage) for stage in split.stages]
        self._fixed_slots = [fixed for fixed, _ in groups]
        self._changing_slots = [changing for _, changing in groups]
        # What forward and backward take, by stage.
        self.weights: list[list[Any]] = []
        self.fixed: list[list[Any]] = []
        self.changing: list[list[Any]] = [
            [self[s] for s in slots] for slots in self._changing_slots
        ]
        self.refresh()

    def __getitem__(self, slot: Slot) -> Any:
        return self._values[slot.role][slot.index]

    def __setitem__(self, slot: Slot, value: Any) -> None:
        self._values[slot.role][slot.index] = value

    def at(self, slot: Slot, stage: int) -> Any:
        """Returns a value on the device of `stage`."""
        return on_device(self[slot], self._devices[stage])

    def refresh(self) -> None:
        """Gives the stages the values of the last update."""
        stages = self._split.stages
        self.weights = [
            [self.at(Slot("trainable", k), s.index) for k in s.trainable] for s in stages
        ]
        self.fixed = [
            [self.at(slot, stage) for slot in slots]
            for stage, slots in enumerate(self._fixed_slots)
        ]

    def state(self) -> State:
        """Returns the state as Keras keeps it.

        Uncommitted, so that the model can still be called outside of the pipeline: JAX then
        gathers the values that live on different devices.
        """
        for slots, values in zip(self._changing_slots, self.changing, strict=True):
            for slot, value in zip(slots, values, strict=True):
                self[slot] = value
        return tuple(Values(map(uncommitted, self._values[role])) for role in self._roles)
