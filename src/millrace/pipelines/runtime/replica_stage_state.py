"""The values of a pipelined model's variables on the devices of several replicas.

whole      weights, optimizer state, counters: the same on each device of their stage's group,
           or shared out over it
changing   what differs between replicas until the end of an update: `[replicas, ...]`
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_arrays import uncommitted
from millrace.devices import DeviceGroup, put_on
from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.programs.split import Slot
from millrace.pipelines.runtime.stage_state import StageState
from millrace.plan import ROLES, Mode
from millrace.steps.state import State, Values


class ReplicaStageState(StageState):
    """A state whose values lie on the groups of their stages."""

    def __init__(
        self,
        mode: Mode,
        state: State,
        builder: StageBuilder,
        owners: Mapping[Slot, int],
        groups: Sequence[DeviceGroup],
        before: "ReplicaStageState | None",
    ):
        """Lays the values out.

        Args:
            mode: of the loop.
            state: as Keras keeps it.
            builder: of the programs, which says how each value lies.
            owners: the stage of each value.
            groups: of each stage.
            before: the state of the execution before this one, which knows the values that it
                gave to Keras.
        """
        assert builder.replicated is not None  # noqa: S101 - of several replicas
        self._builder, self._replicated = builder, builder.replicated
        # By identity of a value that Keras has: that value, and what it stands for here.
        self._known = {} if before is None else before._exported
        self._exported: dict[int, tuple[Any, Any]] = {}
        self._parts = {} if before is None else dict(before._parts)  # by slot
        self._given = {
            Slot(role, index): value
            for role, values in zip(ROLES[mode], state, strict=True)
            for index, value in enumerate(values)
        }
        super().__init__(mode, state, builder, owners, groups)
        self._known, self._given = {}, {}

    def lay(self, value: Any, slot: Slot, stage: int) -> Any:
        """Returns a value as it lies at `stage`: itself, or a copy that has been started."""
        exported, inner = self._known.get(id(value), (None, None))
        value = inner if exported is value else value
        layout = self._builder.layouts.of(stage, slot)
        return value if layout is None else put_on(value, layout)

    def reduce_replicas(self, stage: int, parts: Sequence[Any], whole: Sequence[Any]) -> None:
        """Takes what replicas agreed on: the values that go on, and the same as Keras sees them."""
        left, agreed = iter(parts), iter(whole)
        for place_, (slot, shared) in enumerate(self._changing_of(stage)):
            if not shared:
                self.changing[stage][place_] = self._parts[slot] = next(left)
                self[slot] = next(agreed)

    def unsettled(self, stage: int) -> list[Any]:
        """Returns the values of a stage that differ between replicas."""
        values = zip(self._changing_of(stage), self.changing[stage], strict=True)
        return [value for (_, shared), value in values if not shared]

    def state(self) -> State:
        """Returns the state as Keras keeps it: on the first replica's devices, uncommitted.

        What the replicas share out stays so.
        """
        for stage in range(len(self._stages)):
            values = zip(self._changing_of(stage), self.changing[stage], strict=True)
            for (slot, shared), value in values:
                if shared:
                    self[slot] = value
        self._exported = {}
        return tuple(Values(map(self._export, self._values[role])) for role in self._roles)

    def metrics(self) -> tuple[Any, ...]:
        """Returns what the program of logs takes: each replica's values, at the last stage."""
        last = len(self._stages) - 1
        values = {
            slot: value
            for stage in range(last + 1)
            for (slot, _), value in zip(self._changing_of(stage), self.changing[stage], strict=True)
        }
        found = []
        for index, whole in enumerate(self._values["metric"]):
            slot = Slot("metric", index)
            part = values[slot] if slot in values else self._spread(slot, whole, self._groups[last])
            found.append(put_on(part, self._groups[last].split(0)))
        return (found,)

    def _changing(self, stage: int, slots: Sequence[Slot]) -> list[Any]:
        group, values = self._groups[stage], []
        for slot, shared in self._changing_of(stage):
            value = self[slot]
            if not shared:
                # A value that Keras has not touched goes on as what each replica had of it.
                known = self._parts.get(slot) if self._is_known(slot) else None
                if known is None or known.is_deleted():
                    known = self._spread(slot, value, group)
                value = self._parts[slot] = known
            values.append(value)
        return values

    def _changing_of(self, stage: int) -> list[tuple[Slot, bool]]:
        """Returns the values that a stage changes, and whether all replicas share them."""
        if not self._groups[stage].local:
            return []
        return list(zip(self._changing_slots[stage], self._replicated.is_whole(stage), strict=True))

    def _is_known(self, slot: Slot) -> bool:
        value = self._given[slot]
        return self._known.get(id(value), (None,))[0] is value

    def _spread(self, slot: Slot, value: Any, group: DeviceGroup) -> jax.Array:
        """Gives every replica a value; of a metric the first goes on from it, others from zero."""
        host = np.asarray(value)
        spread = np.broadcast_to(host, (group.replicas, *host.shape)).copy()
        if slot.role == "metric":
            spread[1:] = 0
        return put_on(spread, group.split(0))

    def _export(self, value: Any) -> Any:
        exported = value
        if isinstance(value, jax.Array) and value.sharding.is_fully_replicated:
            exported = uncommitted(value.addressable_data(0))
        self._exported[id(exported)] = (exported, value)
        return exported
