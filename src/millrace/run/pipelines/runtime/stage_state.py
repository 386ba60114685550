"""The values of a pipelined model's variables while an execution runs: each at its stage.

whole      weights, optimizer state, counters: on the device of their stage; with replicas the same
           on each device of the stage's group, or divided over it
changing   what a forward changes; of replicas that differ until the end of an update
           `[replicas, ...]`
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat.jax_arrays import free_unless_shared, uncommitted
from millrace.base.devices import DeviceGroup, put_on
from millrace.base.pytrees import Layout
from millrace.programs.replicas.placement import spread
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays, Slot
from millrace.run.pipelines.programs.stages import state_groups
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
        before: "StageState | None" = None,
        resumed: Sequence[np.ndarray] = (),
    ):
        """Moves each value to the devices of the stage that it lives at.

        Args:
            state: as Keras keeps it.
            builder: of the programs, with the layout of each value.
            owners: the stage of each value.
            groups: of each stage.
            before: with replicas, the state of the previous execution, to recognize the values that
                it gave to Keras.
            resumed: metrics of each replica with which it continues, if it comes from a checkpoint.
        """
        self._builder, self._replicas = builder, builder.layouts.replicas
        # Of values at a stage, where a layout other than its device is wanted.
        self._layouts: dict[tuple[Slot, int], Layout | None] = {}
        self.owners = owners
        # Copies of values that live in another process, by slot and the stage that reads them.
        self.copies: dict[tuple[Slot, int], jax.Array] = {}
        self._stages = builder.stages.split.stages
        self._groups, self._resumed = groups, resumed
        # By identity of a value that Keras has: that value, and the same value at its stage.
        self._from_keras = {} if before is None else before._exported
        self._exported: dict[int, tuple[jax.Array, jax.Array]] = {}
        # By slot: the values of all replicas, `[replicas, ...]`.
        self._by_replica = {} if before is None else dict(before._by_replica)
        self._values: dict[str, Arrays] = {role: list(values) for role, values in state.items()}
        self._moved: list[jax.Array] = []  # as Keras gave them; their copies are in `_values`
        unchanged: set[Slot] = set()  # values that Keras has not changed since then
        for role, values in self._values.items():
            for index, value in enumerate(values):
                slot = Slot(role, index)
                if self._from_keras.get(id(value), (None,))[0] is value:
                    unchanged.add(slot)
                if slot in owners and groups[owners[slot]].local:
                    values[index] = self.lay(value, slot, owners[slot])
                    if values[index] is not value:
                        self._moved.append(value)
        groups_of_slots = [state_groups(stage) for stage in self._stages]
        self._fixed_slots = [fixed for fixed, _ in groups_of_slots]
        # The slots that a stage changes, each with whether all replicas share it.
        self._changing_slots = [
            list(zip(changing, builder.is_whole(stage), strict=True)) if groups[stage].local else []
            for stage, (_, changing) in enumerate(groups_of_slots)
        ]
        # Inputs of forward and backward, by stage.
        self.weights: list[Arrays] = []
        self.fixed: list[Arrays] = []
        self.changing: list[Arrays] = [
            [
                self[slot] if shared else self._of_replicas(slot, groups[k], slot in unchanged)
                for slot, shared in slots
            ]
            for k, slots in enumerate(self._changing_slots)
        ]
        self._from_keras = {}
        self.refresh()

    def __getitem__(self, slot: Slot) -> jax.Array:
        return self._values[slot.role][slot.index]

    def __setitem__(self, slot: Slot, value: jax.Array) -> None:
        self._values[slot.role][slot.index] = value

    def lay(self, value: jax.Array, slot: Slot, stage: int) -> jax.Array:
        """Returns a value in its layout at `stage`: itself, or a copy that has been started."""
        exported, inner = self._from_keras.get(id(value), (None, value))
        value = inner if exported is value else value
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

    def values_by_replica(self, stage: int) -> Arrays:
        """Returns the values of a stage that differ between replicas."""
        values = zip(self._changing_slots[stage], self.changing[stage], strict=True)
        return [value for (_, shared), value in values if not shared]

    def reduce_replicas(
        self, stage: int, by_replica: Sequence[jax.Array], whole: Sequence[jax.Array]
    ) -> None:
        """Takes the values that the replicas agreed on.

        Args:
            stage: that changed them.
            by_replica: values for each replica, `[replicas, ...]`.
            whole: the same values as Keras sees them.
        """
        remaining, agreed = iter(by_replica), iter(whole)
        for index, (slot, shared) in enumerate(self._changing_slots[stage]):
            if not shared:
                self.changing[stage][index] = self._by_replica[slot] = next(remaining)
                self[slot] = next(agreed)

    def saved(self) -> Callable[[], None]:
        """Copies what forwards change; the result puts it back, if an update is not applied.

        Copies, since the forward of a stage gives the memory of these values to the new ones.
        """
        changing = [list(map(jnp.copy, values)) for values in self.changing]
        # As Keras sees the values where replicas differ; no program replaces these.
        whole = {slot: self[slot] for slots in self._changing_slots for slot, _ in slots}

        def restore() -> None:
            self.changing[:] = changing
            for stage, slots in enumerate(self._changing_slots):
                own = [slot for slot, shared in slots if not shared]
                self.reduce_replicas(stage, self.values_by_replica(stage), [whole[k] for k in own])

        return restore

    def state(self) -> State:
        """Returns the state as Keras keeps it.

        Uncommitted, so that the model can still be called outside of the pipeline: JAX then
        gathers the values that live on different devices. With replicas these are on the first
        one's devices, except for values that are divided over the replicas.
        """
        for slots, values in zip(self._changing_slots, self.changing, strict=True):
            for (slot, shared), value in zip(slots, values, strict=True):
                if shared:
                    self[slot] = value
        self._exported = {}
        return State().replace(
            **{role: map(self._export, values) for role, values in self._values.items()}
        )

    def metrics(self) -> tuple[Arrays]:
        """Returns the arguments of the program of logs: the metrics' values, at the last stage.

        With replicas these are the values of all of them, `[replicas, ...]`.
        """
        group = self._groups[-1]
        if self._replicas == 1:
            return ([on_device(value, group.devices[0]) for value in self.state().metric],)
        values = {
            slot: value
            for slots, values in zip(self._changing_slots, self.changing, strict=True)
            for (slot, _), value in zip(slots, values, strict=True)
        }
        metrics = []
        for index in range(len(self._values["metric"])):
            slot = Slot("metric", index)
            value = values[slot] if slot in values else self._spread(slot, group)
            metrics.append(put_on(value, group.split(0)))
        return (metrics,)

    def _of_replicas(self, slot: Slot, group: DeviceGroup, is_unchanged: bool) -> jax.Array:
        """Returns each replica's value: its own of before, unless Keras has changed the value."""
        own = self._by_replica.get(slot) if is_unchanged else None
        if own is None or own.is_deleted():
            own = self._by_replica[slot] = self._spread(slot, group)
        return own

    def _spread(self, slot: Slot, group: DeviceGroup) -> jax.Array:
        is_resumed = slot.role == "metric" and slot.index < len(self._resumed)
        resumed = self._resumed[slot.index] if is_resumed else None
        return spread(self[slot], group, slot.role, resumed)

    def _export(self, value: jax.Array) -> jax.Array:
        if self._replicas == 1:
            return uncommitted(value)
        exported = value
        if isinstance(value, jax.Array) and value.sharding.is_fully_replicated:
            exported = uncommitted(value.addressable_data(0))
        self._exported[id(exported)] = (exported, value)
        return exported
