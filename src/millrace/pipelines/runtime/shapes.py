"""The tasks for each shape of micro-batches, and the dry run that compiles them beforehand."""

from collections.abc import Callable
from dataclasses import replace

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.compiled_loop.protocol import ExecutionSteps
from millrace.compiling.executable import Executable
from millrace.pipelines.runtime.compiled_stages import CompiledStages, StagePrograms
from millrace.pipelines.runtime.micro_batches import Shape
from millrace.pipelines.runtime.taps import check_queues
from millrace.pipelines.runtime.tasks import StageTasks
from millrace.pipelines.runtime.update import StageUpdate
from millrace.plan import BatchSpec, Mode, Plan
from millrace.steps.program import Program
from millrace.steps.state import State

# (plan, state or its specs) -> the plan with a choice of recomputation
ChoosePlan = Callable[[Plan, State], Plan]


class Shapes:
    """The shapes of micro-batches that one mode of one pipeline has seen."""

    def __init__(self, compiled: CompiledStages, plan: Plan, choose: ChoosePlan):
        """Starts without shapes.

        Args:
            compiled: the executables of all stages.
            plan: of the mode; its batch is replaced by that of each shape.
            choose: returns a plan that stays within its memory budget.
        """
        self.compiled, self._choose = compiled, choose
        self.plan = replace(plan, capacity=1, records=1)
        self._shapes: dict[tuple[BatchSpec, object], Shape] = {}

    def of(self, spec: BatchSpec, state: State) -> Shape:
        """Returns the tasks for micro-batches of a shape, compiled when it is new.

        Args:
            spec: of the batch of one replica.
            state: the state, or its specs, as Keras has it.
        """
        key = (spec, looks_for_non_finite())  # this decides which arguments may be donated
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._make(spec, state)
        return shape

    def first(self) -> tuple[BatchSpec, Shape]:
        """Returns the first shape, whose programs run all updates."""
        (spec, _), shape = next(iter(self._shapes.items()))
        return spec, shape

    def chosen(self, spec: BatchSpec, state: State) -> Plan:
        """Returns the plan for a shape, within its budget."""
        return self._choose(replace(self.plan, batch=spec), state)

    def _make(self, spec: BatchSpec, state: State) -> Shape:
        plan, compiled = self.chosen(spec, state), self.compiled
        builder = compiled.executables.builder(plan, state, compiled.groups)
        check_queues(builder)
        compiled.prepare(plan, state, is_first=not self._shapes)

        def find(name: str, stage: int, make: Callable[[], Program]) -> Executable:
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
    """Compiles the programs of a pipeline's executions, and runs none."""

    def __init__(self, shapes: Shapes):
        self._shapes = shapes

    def programs(self, state: State, execution: ExecutionSteps) -> StagePrograms:
        """Returns the compiled programs of an update of the first micro-batch's shape."""
        shapes, spec = self._shapes, next(iter(execution.slices)).block.spec
        return shapes.compiled.programs(shapes.chosen(spec, state), state)

    def compile(self, state: State, execution: ExecutionSteps) -> None:
        """Compiles the programs of an execution, for its runner to find."""
        for spec in dict.fromkeys(block_slice.block.spec for block_slice in execution.slices):
            self._shapes.of(spec, state)
