"""The tasks of one update of a pipeline: what each of them takes, and what all leave behind.

task (pass, stage, micro-batch)  ->  the stage's task    tasks.py
                                 ->  results of micro-batches | gradients, added up by stage
"""

from collections.abc import Sequence

import jax
import numpy as np

from millrace.programs.plan import Plan
from millrace.programs.steps.accumulate import coefficient_of, scale_of, weight_of
from millrace.run.pipelines.runtime.buffers import Buffers
from millrace.run.pipelines.runtime.micro_batches import MicroBatch
from millrace.run.pipelines.runtime.stage_state import StageState
from millrace.run.schedules.task import Pass, Task


class UpdateTasks:
    """Runs the tasks of one update, in any order in which each finds its inputs."""

    def __init__(self, plan: Plan, micro_batches: Sequence[MicroBatch], state: StageState):
        """Starts without gradients.

        Args:
            plan: of the training.
            micro_batches: of the update.
            state: of the stages.
        """
        self._micro_batches, self._state, self._replicas = micro_batches, state, plan.replicas
        self._reduction = plan.accumulation.reduction
        self._is_running = self._reduction.is_running
        shape = micro_batches[0].shape  # of a full micro-batch: only the last ones are smaller
        self._weights = [
            weight_of(self._reduction, each.shape.rows, shape.rows, each.share)
            for each in micro_batches
        ]
        # Converted once: a task costs the time of its dispatch.
        self._coefficients = list(map(np.float32, self._weights))
        self._steps_arguments = [each.steps_argument(plan.replicas) for each in micro_batches]
        self._accumulated = [0] * len(shape.stages)  # micro-batches of a running mean, by stage
        self.buffers = Buffers()
        self.buffers.sums = [stage.zeros() for stage in shape.stages]
        # By micro-batch, the leaves of the step's result by their index.
        self.results: list[dict[int, jax.Array]] = [{} for _ in micro_batches]

    def run(self, task: Task) -> None:
        """Dispatches one task."""
        number = task.micro_batch
        micro_batch, steps = self._micro_batches[number], self._steps_arguments[number]
        stage = micro_batch.shape.stages[task.stage]
        state, buffers = self._state, self.buffers
        if task.kind is Pass.FORWARD:
            leaves = micro_batch.leaves
            self.results[number] |= stage.forward(number, leaves, state, buffers, *steps)
        elif task.kind is Pass.BACKWARD:
            stage.backward(number, state, buffers, self._coefficient(task), *steps)
        elif task.kind is Pass.BACKWARD_INPUT:
            stage.backward_input(number, state, buffers)
        else:
            stage.backward_weight(number, state, buffers, self._coefficient(task), *steps)

    @property
    def scale(self) -> np.float32:
        """The factor from the sums of all micro-batches to the gradients of the update."""
        steps = (each.steps for each in self._micro_batches)
        total = sum(weight * each for weight, each in zip(self._weights, steps, strict=True))
        return np.float32(scale_of(self._reduction, total, self._replicas))

    def _coefficient(self, task: Task) -> np.float32:
        """Returns the weight of the task's gradients."""
        if not self._is_running:
            return self._coefficients[task.micro_batch]
        before = self._accumulated[task.stage]
        self._accumulated[task.stage] += 1
        return np.float32(coefficient_of(self._reduction, 0.0, before))
