"""What runs micro-batches of each shape, and the dry run that compiles it beforehand."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.compiled_loop.protocol import ExecutionSteps
from millrace.pipelines.runtime.compiled_stages import CompiledStages, StagePrograms
from millrace.pipelines.runtime.micro_batches import Shape
from millrace.pipelines.runtime.taps import check_queues
from millrace.pipelines.runtime.tasks import StageTasks
from millrace.pipelines.runtime.update import StageUpdate
from millrace.plan import BatchSpec, Mode, Plan

Choose = Callable[[Plan, Any], Plan]  # of a plan and a state, or its specs: what is run again


class Shapes:
    """The shapes of micro-batches that one mode of one pipeline has seen."""

    def __init__(self, compiled: CompiledStages, plan: Plan, choose: Choose):
        """Has seen none yet.

        Args:
            compiled: the executables of all stages.
            plan: of the mode; its batch is replaced by that of each shape.
            choose: returns a plan that stays within its budget.
        """
        self.compiled, self._choose = compiled, choose
        self.plan = replace(plan, capacity=1, records=1)
        self._found: dict[tuple[BatchSpec, bool], Shape] = {}

    def of(self, spec: BatchSpec, state: Any) -> Shape:
        """Returns what runs micro-batches of a shape; compiles it if it is new.

        Args:
            spec: of the batch of one replica.
            state: the state, or its specs, as Keras has it.
        """
        key = (spec, looks_for_non_finite())  # which decides what may be donated
        shape = self._found.get(key)
        if shape is None:
            shape = self._found[key] = self._make(spec, state)
        return shape

    def first(self) -> tuple[BatchSpec, Shape]:
        """Returns the shape that came first, whose programs run the updates."""
        (spec, _), shape = next(iter(self._found.items()))
        return spec, shape

    def chosen(self, spec: BatchSpec, state: Any) -> Plan:
        """Returns the plan for a shape, within its budget."""
        return self._choose(replace(self.plan, batch=spec), state)

    def _make(self, spec: BatchSpec, state: Any) -> Shape:
        plan, compiled = self.chosen(spec, state), self.compiled
        builder = compiled.executables.builder(plan, state, compiled.groups)
        check_queues(builder)
        compiled.prepare(plan, state, is_first=not self._found)

        def find(name: str, stage: int, make: Any) -> Any:
            group = compiled.groups[stage]
            return compiled.executables.find(builder, plan, group, name, stage, make)

        stages = [
            StageTasks(builder, plan.mode, stage, compiled.groups, find)
            for stage in range(len(compiled.groups))
        ]
        trains = plan.mode is Mode.TRAIN
        update = StageUpdate(builder, compiled.groups, find) if trains else None
        return Shape(builder, stages, update, spec.rows, spec.treedef)


class PipelineDryRun:
    """Compiles what the executions of a pipeline would run, and runs nothing."""

    def __init__(self, shapes: Shapes):
        self._shapes = shapes

    def programs(self, state: Any, execution: ExecutionSteps) -> StagePrograms:
        """Returns what an update of the first micro-batch's shape runs, compiled."""
        shapes, spec = self._shapes, next(iter(execution.slices)).block.spec
        return shapes.compiled.programs(shapes.chosen(spec, state), state)

    def compile(self, state: Any, execution: ExecutionSteps) -> None:
        """Compiles what an execution runs, for its runner to have it."""
        for spec in dict.fromkeys(block_slice.block.spec for block_slice in execution.slices):
            self._shapes.of(spec, state)
