"""The values of a pipelined model's variables on the devices of several replicas.

whole      weights, optimizer state, counters: the same on each device of their stage's group,
           or divided over it
changing   what differs between replicas until the end of an update: `[replicas, ...]`
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from millrace._compat.jax_arrays import uncommitted
from millrace.base.devices import DeviceGroup, put_on
from millrace.programs.steps.state import State
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Arrays, Slot
from millrace.run.pipelines.runtime.stage_state import StageState


class ReplicaStageState(StageState):
    """A state whose values lie on the groups of their stages."""

    def __init__(
        self,
        state: State,
        builder: StageBuilder,
        owners: Mapping[Slot, int],
        groups: Sequence[DeviceGroup],
        before: "ReplicaStageState | None",
        resumed: Sequence[np.ndarray] = (),
    ):
        """Puts the values into their layouts.

        Args:
            state: as Keras keeps it.
            builder: of the programs, with the layout of each value.
            owners: the stage of each value.
            groups: of each stage.
            before: the state of the previous execution, to recognize the values that it gave to
                Keras.
            resumed: metrics of each replica with which it continues, if it comes from a checkpoint.
        """
        self._resumed = resumed
        assert builder.replicated is not None  # noqa: S101 - of several replicas
        self._builder, self._replicated = builder, builder.replicated
        # By identity of a value that Keras has: that value, and the same value at its stage.
        self._from_keras = {} if before is None else before._exported
        self._exported: dict[int, tuple[jax.Array, jax.Array]] = {}
        # By slot: the values of all replicas, `[replicas, ...]`.
        self._by_replica = {} if before is None else dict(before._by_replica)
        self._keras_values = {
            Slot(role, index): value
            for role, values in state.items()
            for index, value in enumerate(values)
        }
        super().__init__(state, builder, owners, groups)
        self._from_keras, self._keras_values = {}, {}

    def lay(self, value: jax.Array, slot: Slot, stage: int) -> jax.Array:
        """Returns a value in its layout at `stage`: itself, or a copy that has been started."""
        exported, inner = self._from_keras.get(id(value), (None, value))
        value = inner if exported is value else value
        layout = self._builder.layouts.of(stage, slot)
        return value if layout is None else put_on(value, layout)

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
        for index, (slot, shared) in enumerate(self._changing_of(stage)):
            if not shared:
                self.changing[stage][index] = self._by_replica[slot] = next(remaining)
                self[slot] = next(agreed)

    def values_by_replica(self, stage: int) -> Arrays:
        """Returns the values of a stage that differ between replicas."""
        values = zip(self._changing_of(stage), self.changing[stage], strict=True)
        return [value for (_, shared), value in values if not shared]

    def state(self) -> State:
        """Returns the state as Keras keeps it: on the first replica's devices, uncommitted.

        Values that are divided over the replicas stay divided.
        """
        for stage in range(len(self._stages)):
            values = zip(self._changing_of(stage), self.changing[stage], strict=True)
            for (slot, shared), value in values:
                if shared:
                    self[slot] = value
        self._exported = {}
        return State().replace(
            **{role: map(self._export, values) for role, values in self._values.items()}
        )

    def metrics(self) -> tuple[Arrays]:
        """Returns the arguments of the program of logs: all replicas' values, at the last stage."""
        last = len(self._stages) - 1
        values = {
            slot: value
            for stage in range(last + 1)
            for (slot, _), value in zip(self._changing_of(stage), self.changing[stage], strict=True)
        }
        group, metrics = self._groups[last], []
        for index, whole in enumerate(self._values["metric"]):
            slot = Slot("metric", index)
            value = values[slot] if slot in values else self._spread(slot, whole, group)
            metrics.append(put_on(value, group.split(0)))
        return (metrics,)

    def _changing(self, stage: int, slots: Sequence[Slot]) -> Arrays:
        group, values = self._groups[stage], []
        for slot, shared in self._changing_of(stage):
            value = self[slot]
            if not shared:
                # Where Keras has not changed a value, each replica continues with its own.
                spread = self._by_replica.get(slot) if self._is_unchanged(slot) else None
                if spread is None or spread.is_deleted():
                    spread = self._spread(slot, value, group)
                value = self._by_replica[slot] = spread
            values.append(value)
        return values

    def _changing_of(self, stage: int) -> list[tuple[Slot, bool]]:
        """Returns the slots that a stage changes, each with whether all replicas share it."""
        if not self._groups[stage].local:
            return []
        return list(zip(self._changing_slots[stage], self._replicated.is_whole(stage), strict=True))

    def _is_unchanged(self, slot: Slot) -> bool:
        value = self._keras_values[slot]
        return self._from_keras.get(id(value), (None,))[0] is value

    def _spread(self, slot: Slot, value: jax.Array, group: DeviceGroup) -> jax.Array:
        """Gives every replica a value; of a metric only the first, the others start from zero."""
        host = np.asarray(value)
        if slot.role == "metric" and slot.index < len(self._resumed):
            resumed = self._resumed[slot.index]
            if resumed.shape == (group.replicas, *host.shape):
                return put_on(resumed, group.split(0))
        spread = np.broadcast_to(host, (group.replicas, *host.shape)).copy()
        if slot.role == "metric":
            spread[1:] = 0
        return put_on(spread, group.split(0))

    def _export(self, value: jax.Array) -> jax.Array:
        exported = value
        if isinstance(value, jax.Array) and value.sharding.is_fully_replicated:
            exported = uncommitted(value.addressable_data(0))
        self._exported[id(exported)] = (exported, value)
        return exported
