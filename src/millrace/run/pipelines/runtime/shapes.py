"""The compiled stages of each shape of batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.base.collector import fewer_collections
from millrace.base.devices import DeviceGroup
from millrace.compilation.executables.executable import Executable
from millrace.programs.plan import BatchSpec, Mode, Plan
from millrace.programs.steps.program import Program
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.protocol import ExecutionSteps
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.executables import StageExecutables
from millrace.run.pipelines.runtime.micro_batches import Shape
from millrace.run.pipelines.runtime.stage_programs import Orders, pipeline_programs
from millrace.run.pipelines.runtime.taps import check_queues
from millrace.run.pipelines.runtime.tasks import StageTasks
from millrace.run.pipelines.runtime.update import StageUpdate
from millrace.run.schedules.task import Schedule, Task


@dataclass(frozen=True, slots=True)
class StageProgram:
    """A program of a stage, with its executable."""

    program: Program
    executable: Executable


@dataclass(frozen=True, slots=True)
class StagePrograms:
    """All programs that one update of a pipeline runs."""

    builder: StageBuilder
    groups: tuple[DeviceGroup, ...]  # of each stage
    schedule: Schedule
    order: tuple[Task, ...]  # of the tasks of the update
    programs: Mapping[tuple[str, int], StageProgram]  # by name and stage, of those here


class CompiledStages:
    """The executables of one mode of one pipeline, the devices of its stages, and its orders."""

    def __init__(self, executables: StageExecutables, orders: Orders):
        """Describes a pipeline, compiling nothing.

        Args:
            executables: of the pipeline.
            orders: of the tasks of an update.
        """
        self.executables, self.groups, self.orders = executables, executables.groups, orders

    @fewer_collections()  # while the passes of stages and the update are traced
    def prepare(self, plan: Plan, state: State, is_first: bool) -> StageBuilder:
        """Compiles the programs of micro-batches in parallel, and returns their builder.

        Args:
            plan: of the mode, with a batch.
            state: the state, or its specs, as Keras has it.
            is_first: whether updates run the programs of this shape.
        """
        builder = self.executables.builder(plan, state)
        wanted = pipeline_programs(builder, self.orders, is_first)
        self.executables.prepare(builder, wanted)
        return builder

    def programs(self, plan: Plan, state: State) -> StagePrograms:
        """Returns the programs that an update runs.

        Args:
            plan: of training, with a batch.
            state: specs of the state, as Keras has it.
        """
        builder = self.prepare(plan, state, is_first=True)
        schedule, order = self.orders.of(plan.accumulation.steps)
        programs: dict[tuple[str, int], StageProgram] = {}
        for name, stage in pipeline_programs(builder, self.orders, is_first=True):
            if self.groups[stage].local:
                run = self.executables.find(builder, name, stage)
                programs[name, stage] = StageProgram(builder.program(name, stage), run)
        return StagePrograms(builder, self.groups, schedule, order, programs)


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

    def first(self) -> Shape:
        """Returns the first shape, whose programs run all updates."""
        return next(iter(self._shapes.values()))

    def chosen(self, spec: BatchSpec, state: State) -> Plan:
        """Returns the plan for a shape, within its budget."""
        return self._choose(replace(self.plan, batch=spec), state)

    def _make(self, spec: BatchSpec, state: State) -> Shape:
        plan, compiled = self.chosen(spec, state), self.compiled
        check_queues(compiled.executables.builder(plan, state))
        builder = compiled.prepare(plan, state, is_first=not self._shapes)
        find = partial(compiled.executables.find, builder)
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
