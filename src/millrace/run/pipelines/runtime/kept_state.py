"""The state of a pipeline between its executions, and its transfer to other processes.

execution -> state for Keras -> execution       the same values, which stay at their stages
execution -> state for Keras -> variables       every process gets all values: `gather`
"""

from collections.abc import Callable, Iterable, Sequence

import jax
import numpy as np

from millrace.base.devices import DeviceGroup
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.pipelines.runtime.links import leave
from millrace.run.pipelines.runtime.micro_batches import Shape
from millrace.run.pipelines.runtime.stage_state import StageState
from millrace.run.pipelines.runtime.transfer import ToAll
from millrace.run.processes.agreement import gathered, on_one_device, texts_of_all


class KeptState:
    """The state that Keras got after an execution, and the same values at their stages."""

    def __init__(self, groups: Sequence[DeviceGroup]):
        """Starts without a state.

        Args:
            groups: of each stage.
        """
        self._groups = groups
        self._spans_processes = any(not group.is_local for group in groups)
        self._keras_state: State | None = None
        self._stage_state: StageState | None = None
        self._to_all = ToAll(groups)
        self._resumed: Sequence[np.ndarray] = ()  # metrics of each replica, of a checkpoint
        self._result_specs: dict[int, SpecTree] = {}  # by stage

    def enter(self, state: State, shape: Shape) -> StageState:
        """Returns a state of Keras as its stages hold it."""
        before = self._stage_state
        if before is not None and state is self._keras_state:
            return before
        builder = shape.builder
        owners = dict(builder.stages.split.owners)
        if shape.update is not None:
            owners.update(builder.stages.update.owners)
        self._stage_state = None  # whose values would be held beside the new ones
        before = before if builder.layouts.replicas > 1 else None
        resumed, self._resumed = self._resumed, ()
        return StageState(state, builder, owners, self._groups, before, resumed)

    def metric_parts(self) -> list[jax.Array]:
        """Returns the metrics of each replica; none without replicas, or after a failure."""
        state = self._stage_state
        if state is None or self._groups[0].replicas == 1:
            return []
        is_lost = any(value.is_deleted() for value in jax.tree.leaves(state.changing))
        return [] if is_lost else list(state.metrics()[0])

    def resume_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Lets the next execution continue with metrics of each replica."""
        self._resumed = parts

    def keep(self, state: State, stage_state: StageState) -> None:
        """Remembers the state that Keras gets for `stage_state`."""
        self._keras_state, self._stage_state = state, stage_state

    def release(self) -> None:
        """Forgets the state of a loop that has ended."""
        self._keras_state = self._stage_state = None

    def gather(self, role: str, values: Iterable[jax.Array]) -> list[jax.Array]:
        """Returns values of the state as variables hold them; all processes call it together."""
        whole = [gathered(value) for value in values]
        if self._stage_state is not None and self._spans_processes:
            self._fetch(role, whole, self._stage_state)
        # A model that is called outside of its pipeline computes with weights of all stages.
        return list(map(on_one_device, whole)) if role == "trainable" else whole

    def share_result(self, result: ArrayTree, stage: int, make: Callable[[], Program]) -> ArrayTree:
        """Gives the result of a stage's program to the processes that have no device of it.

        Args:
            result: of the program; None in a process that has no device of the stage.
            stage: of the program.
            make: returns the program, whose result has the same specs in every process.
        """
        if not self._spans_processes:
            return result
        if stage not in self._result_specs:
            program = make()
            self._result_specs[stage] = jax.eval_shape(program.function, *program.arguments)
        specs = self._result_specs[stage]
        leaves = None if result is None else jax.tree.leaves(result)
        shared = self._to_all.share(stage, leaves, jax.tree.leaves(specs))
        return jax.tree.unflatten(jax.tree.structure(specs), shared)

    def _fetch(self, role: str, values: list[jax.Array], state: StageState) -> None:
        """Replaces the values whose stages are in other processes by their newest ones."""
        for stage in range(len(self._groups)):
            slots = [slot for slot, owner in state.owners.items() if owner == stage]
            indices = sorted(slot.index for slot in slots if slot.role == role)
            specs = [jax.ShapeDtypeStruct(values[k].shape, values[k].dtype) for k in indices]
            mine = [values[k] for k in indices] if self._groups[stage].local else None
            shared = self._to_all.share(stage, mine, specs)
            for k, value in zip(indices, shared, strict=True):
                values[k] = value
        try:
            jax.block_until_ready(values)
        except jax.errors.JaxRuntimeError as error:
            leave(error)
            raise
        texts_of_all("", FETCH_SECONDS)  # none may replace a value that another still fetches


FETCH_SECONDS = 600.0  # for all processes to get the weights
