"""The state of a pipeline between its executions, and its way to other processes.

execution -> state for Keras -> execution       the same values: nothing is taken apart again
execution -> state for Keras -> variables       each process has them all: `gather`
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from millrace.devices import DeviceGroup
from millrace.pipelines.runtime.micro_batches import Shape
from millrace.pipelines.runtime.replica_stage_state import ReplicaStageState
from millrace.pipelines.runtime.stage_state import StageState
from millrace.pipelines.runtime.transfer import ToAll
from millrace.plan import Mode
from millrace.processes.agreement import check_same, gathered, on_one_device
from millrace.steps.program import Program
from millrace.steps.state import State


class KeptState:
    """What Keras was given after an execution, and what it stands for."""

    def __init__(self, groups: Sequence[DeviceGroup]):
        """Keeps nothing yet.

        Args:
            groups: of each stage.
        """
        self._groups = groups
        self._spans_processes = any(not group.is_local for group in groups)
        self._given: State | None = None
        self._values: StageState | None = None
        self._to_all: dict[int, ToAll] = {}  # by stage
        self._result_specs: dict[int, Any] = {}  # by stage

    def enter(self, mode: Mode, state: State, shape: Shape) -> StageState:
        """Returns a state of Keras as its stages hold it."""
        before = self._values
        if before is not None and state is self._given:
            return before
        builder = shape.builder
        owners = dict(builder.stages.split.owners)
        if shape.update is not None:
            owners.update(builder.stages.update.owners)
        if builder.replicated is None:
            return StageState(mode, state, builder, owners, self._groups)
        before = before if isinstance(before, ReplicaStageState) else None
        return ReplicaStageState(mode, state, builder, owners, self._groups, before)

    def keep(self, state: State, values: StageState) -> None:
        """Takes note of what Keras is given for `values`."""
        self._given, self._values = state, values

    def release(self) -> None:
        """Lets go of a loop that has ended."""
        self._given = self._values = None

    def gather(self, role: str, values: Iterable[Any]) -> list[Any]:
        """Returns values of the state as variables hold them; all processes call it together."""
        found = [gathered(value) for value in values]
        if self._values is not None and self._spans_processes:
            self._fetch(role, found, self._values)
        # A model that is called outside of its pipeline computes with weights of all stages.
        return list(map(on_one_device, found)) if role == "trainable" else found

    def share_result(self, result: Any, stage: int, make: Callable[[], Program]) -> Any:
        """Gives what a stage's program returned to the processes that have no device of it."""
        if not self._spans_processes:
            return result
        if stage not in self._result_specs:
            program = make()
            self._result_specs[stage] = jax.eval_shape(program.function, *program.arguments)
        specs = self._result_specs[stage]
        leaves = None if result is None else jax.tree.leaves(result)
        shared = self._share(stage, leaves, jax.tree.leaves(specs))
        return jax.tree.unflatten(jax.tree.structure(specs), shared)

    def _fetch(self, role: str, found: list[Any], state: StageState) -> None:
        """Replaces values that live in other processes by what they are there."""
        for stage in range(len(self._groups)):
            slots = [slot for slot, owner in state.owners.items() if owner == stage]
            places = sorted(slot.index for slot in slots if slot.role == role)
            specs = [jax.ShapeDtypeStruct(found[k].shape, found[k].dtype) for k in places]
            mine = [found[k] for k in places] if self._groups[stage].local else None
            for k, value in zip(places, self._share(stage, mine, specs), strict=True):
                found[k] = value
        jax.block_until_ready(found)
        # Nobody may go on and replace what another still fetches.
        check_same({"state": role}, FETCH_SECONDS)

    def _share(self, stage: int, values: list[Any] | None, specs: Any) -> list[Any]:
        if stage not in self._to_all:
            self._to_all[stage] = ToAll(self._groups[stage], self._groups)
        return self._to_all[stage].share(values, specs)


FETCH_SECONDS = 600.0  # in which all processes have the weights
