"""The state that every micro-batch changes, saved in case the update is not applied."""

import jax
import jax.numpy as jnp

from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.split import Slot
from millrace.run.pipelines.programs.stages import state_groups
from millrace.run.pipelines.runtime.stage_state import StageState


class ChangingState:
    """Random seeds, moving statistics and metrics, as they were before an update."""

    def __init__(self, state: StageState, builder: StageBuilder):
        """Copies the values, whose memory the forward of a stage gives to the new ones."""
        self._state, self._builder = state, builder
        self._values = [list(map(jnp.copy, values)) for values in state.changing]
        self._slots = [state_groups(stage)[1] for stage in builder.stages.split.stages]
        # The values as Keras sees them where replicas differ; no program replaces these.
        slots = [slot for slots in self._slots for slot in slots]
        self._whole: dict[Slot, jax.Array] = {slot: state[slot] for slot in slots}

    def restore(self) -> None:
        """Puts the values back."""
        for stage, (values, slots) in enumerate(zip(self._values, self._slots, strict=True)):
            self._state.changing[stage] = values
            if values:
                shared = self._builder.is_whole(stage)
                own = [k for k, is_shared in enumerate(shared) if not is_shared]
                whole = [self._whole[slots[k]] for k in own]
                self._state.reduce_replicas(stage, [values[k] for k in own], whole)
