"""All programs of a pipeline's stages, compiled, for updates to run and reports to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.compiling.executable import Executable
from millrace.devices import DeviceGroup
from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.programs.executables import StageExecutables
from millrace.pipelines.runtime.stage_programs import Orders, pipeline_programs
from millrace.plan import Plan
from millrace.schedules.task import Schedule, Task
from millrace.steps.program import Program
from millrace.steps.state import State


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

    def __init__(
        self, executables: StageExecutables, groups: Sequence[DeviceGroup], orders: Orders
    ):
        """Describes a pipeline, compiling nothing.

        Args:
            executables: of the pipeline.
            groups: of each stage.
            orders: of the tasks of an update.
        """
        self.executables, self.groups, self.orders = executables, tuple(groups), orders

    def prepare(self, plan: Plan, state: State, is_first: bool) -> StageBuilder:
        """Compiles the programs of micro-batches in parallel, and returns their builder.

        Args:
            plan: of the mode, with a batch.
            state: the state, or its specs, as Keras has it.
            is_first: whether updates run the programs of this shape.
        """
        builder = self.executables.builder(plan, state, self.groups)
        wanted = pipeline_programs(builder, self.orders, plan, is_first)
        self.executables.prepare(builder, plan, self.groups, wanted)
        return builder

    def programs(self, plan: Plan, state: State) -> StagePrograms:
        """Returns the programs that an update runs.

        Args:
            plan: of training, with a batch.
            state: specs of the state, as Keras has it.
        """
        builder = self.prepare(plan, state, is_first=True)
        schedule, order = self.orders.of(plan.accumulation.steps, builder.stages.split.values)
        programs: dict[tuple[str, int], StageProgram] = {}
        for name, stage, make in pipeline_programs(builder, self.orders, plan, is_first=True):
            group = self.groups[stage]
            if group.local:
                run = self.executables.find(builder, plan, group, name, stage, make)
                programs[name, stage] = StageProgram(make(), run)
        return StagePrograms(builder, self.groups, schedule, order, programs)
