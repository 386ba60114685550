"""The compiled stages of each shape of batch: those of executions, and of their dry runs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.programs.plan import BatchSpec, Division, Mode, Plan
from millrace.programs.steps.micro_batches import check_rows
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.protocol import ExecutionSteps
from millrace.run.pipelines.programs.executables import StageExecutables
from millrace.run.pipelines.programs.stage_programs import StagePrograms
from millrace.run.pipelines.runtime.micro_batches import Shape
from millrace.run.pipelines.runtime.taps import check_queues
from millrace.run.pipelines.runtime.tasks import StageTasks
from millrace.run.pipelines.runtime.update import StageUpdate

# (plan, state or its specs) -> the plan with a choice of recomputation
ChoosePlan = Callable[[Plan, State], Plan]


class Shapes:
    """The shapes of micro-batches that one mode of one pipeline has seen."""

    def __init__(self, executables: StageExecutables, plan: Plan, choose: ChoosePlan):
        """Starts without shapes.

        Args:
            executables: of all stages.
            plan: of the mode; its batch is replaced by that of each shape.
            choose: returns a plan that stays within its memory budget.
        """
        self.executables, self._choose = executables, choose
        self.plan = replace(plan, capacity=1, records=1)
        self._shapes: dict[tuple[BatchSpec, object], Shape] = {}
        self._num_parts: dict[BatchSpec, int] = {}  # of a batch, by the spec of a part
        self._counts: list[int] = []  # of values of each role of the state that they are for

    def of(self, spec: BatchSpec, state: State) -> Shape:
        """Returns the tasks for micro-batches of a shape, compiled when it is new.

        Args:
            spec: of the batch of one replica.
            state: the state, or its specs, as Keras has it.
        """
        if (counts := [len(values) for values in state]) != self._counts:
            self._counts = counts  # layers have been frozen, or have more variables
            self._shapes.clear()
        key = (spec, looks_for_non_finite())  # this decides which arguments may be donated
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = self._make(spec, state)
        return shape

    def division(self, spec: BatchSpec) -> Division:
        """Returns the parts of a batch that are micro-batches.

        Raises:
            PlanError: if an array of it has other rows, and it is divided.
        """
        division = replace(self.plan, batch=spec).division
        if division.parts > 1:
            check_rows(self.plan.accumulation.micro_batch, spec)
            self._num_parts.setdefault(spec.of_rows(division.rows), division.parts)
        return division

    def first(self) -> Shape:
        """Returns the first shape, whose programs run all updates."""
        return next(iter(self._shapes.values()))

    def programs(self, state: State, execution: ExecutionSteps) -> StagePrograms:
        """Returns the compiled programs of an update of the first micro-batch's shape."""
        spec = next(iter(execution.slices)).block.spec
        spec = next(self._parts(spec))
        return self.executables.programs(self._chosen(spec, state), state)

    def compile(self, state: State, execution: ExecutionSteps) -> None:
        """Compiles the programs of an execution, for its runner to find."""
        for spec in dict.fromkeys(block_slice.block.spec for block_slice in execution.slices):
            for part in dict.fromkeys(self._parts(spec)):
                self.of(part, state)

    def _parts(self, spec: BatchSpec) -> Iterator[BatchSpec]:
        parts = self.division(spec).slices
        return (spec.of_rows(k.stop - k.start) if len(parts) > 1 else spec for k in parts)

    def _chosen(self, spec: BatchSpec, state: State) -> Plan:
        accumulation = self.plan.accumulation
        steps = accumulation.steps * self._num_parts.get(spec, 1)
        plan = replace(self.plan, batch=spec, accumulation=replace(accumulation, steps=steps))
        return self._choose(plan, state)

    def _make(self, spec: BatchSpec, state: State) -> Shape:
        plan, executables = self._chosen(spec, state), self.executables
        groups = executables.groups
        check_queues(executables.builder(plan, state))
        builder = executables.compiled(plan, state, is_first=not self._shapes)
        find = cache(partial(executables.find, builder))
        stages = [
            StageTasks(builder, plan.mode, stage, groups, find) for stage in range(len(groups))
        ]
        update = StageUpdate(builder, groups, find) if plan.mode is Mode.TRAIN else None
        return Shape(builder, stages, update, spec.rows, spec.treedef)
