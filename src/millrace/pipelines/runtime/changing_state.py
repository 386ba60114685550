"""What every micro-batch changes, kept for the case that the update after them is not applied."""

from typing import Any

import jax.numpy as jnp

from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.programs.stages import state_groups
from millrace.pipelines.runtime.replica_stage_state import ReplicaStageState
from millrace.pipelines.runtime.stage_state import StageState


class ChangingState:
    """Random seeds, moving statistics and metrics, as they were before an update."""

    def __init__(self, state: StageState, builder: StageBuilder):
        """Copies them: the forward of a stage gives their memory to the new ones."""
        self._state, self._builder = state, builder
        self._values = [list(map(jnp.copy, values)) for values in state.changing]
        self._slots = [state_groups(stage)[1] for stage in builder.stages.split.stages]
        # What Keras sees of values that differ between replicas; no program replaces it.
        self._whole: dict[Any, Any] = {slot: state[slot] for slots in self._slots for slot in slots}

    def restore(self) -> None:
        """Puts the values back."""
        for stage, (values, slots) in enumerate(zip(self._values, self._slots, strict=True)):
            self._state.changing[stage] = values
            replicated = self._builder.replicated
            if values and replicated is not None and isinstance(self._state, ReplicaStageState):
                shared = replicated.is_whole(stage)
                own = [k for k, is_shared in enumerate(shared) if not is_shared]
                whole = [self._whole[slots[k]] for k in own]
                self._state.reduce_replicas(stage, [values[k] for k in own], whole)
