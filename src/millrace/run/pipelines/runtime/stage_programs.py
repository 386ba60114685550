"""The programs that a pipeline runs, in the order in which its tasks need them."""

from collections.abc import Callable, Collection, Iterator
from functools import partial

from millrace.programs.plan import Mode, Plan
from millrace.run.pipelines.programs.builder import StageBuilder
from millrace.run.pipelines.programs.executables import ProgramMaker
from millrace.run.pipelines.programs.replica_builder import ReplicaStageBuilder
from millrace.run.schedules.simulate import merged
from millrace.run.schedules.task import Pass, Schedule, Task


class Orders:
    """Makes the schedules of one pipeline, and merges the rows of each into one order."""

    def __init__(self, make_schedule: Callable[[int], Schedule], name: str = ""):
        """Remembers how to make schedules.

        Args:
            make_schedule: returns the schedule of an update with a number of micro-batches.
            name: of the schedule, for traces.
        """
        self._make_schedule, self.name = make_schedule, name
        self._orders: dict[int, tuple[Schedule, tuple[Task, ...]]] = {}

    def of(self, num_micro_batches: int) -> tuple[Schedule, tuple[Task, ...]]:
        """Returns the schedule of an update, and its tasks in the order of their dispatch.

        All processes walk this one order, and so none of them waits for ever for another one.
        """
        if num_micro_batches not in self._orders:
            schedule = self._make_schedule(num_micro_batches)
            self._orders[num_micro_batches] = schedule, merged(schedule)
        return self._orders[num_micro_batches]


def pipeline_programs(
    builder: StageBuilder, orders: Orders, plan: Plan, is_first: bool
) -> list[ProgramMaker]:
    """Returns all programs of a pipeline, for one shape of batch.

    Args:
        builder: of the pipeline, for this shape.
        orders: of its tasks.
        plan: of its mode.
        is_first: whether this is the first shape; batches of all shapes are updated with the
            programs of the first.
    """
    trains, kinds = plan.mode is Mode.TRAIN, set[Pass]()
    if trains:
        _, order = orders.of(plan.accumulation.steps)
        kinds = {task.kind for task in order}
    updates = update_programs(builder, trains) if is_first else ()
    return [*task_programs(builder, kinds), *updates]


def task_programs(builder: StageBuilder, kinds: Collection[Pass]) -> Iterator[ProgramMaker]:
    """Yields the programs of a schedule's tasks.

    Args:
        builder: of the pipeline, for one shape of batch.
        kinds: of the tasks.
    """
    for stage in range(len(builder.stages.split.stages)):
        yield ProgramMaker("forward", stage, partial(builder.forward, stage))
        if Pass.BACKWARD in kinds:
            yield ProgramMaker("backward", stage, partial(builder.backward, stage))
        if Pass.BACKWARD_INPUT in kinds and builder.stages.passes(stage).returns:
            yield ProgramMaker("backward_input", stage, partial(builder.backward_input, stage))
        if Pass.BACKWARD_WEIGHT in kinds:
            yield ProgramMaker("backward_weight", stage, partial(builder.backward_weight, stage))


# Those of an update of the weights, by name.
UPDATE_PROGRAMS = ("reduce_replicas", "partial", "shared", "final")


def update_programs(builder: StageBuilder, trains: bool) -> Iterator[ProgramMaker]:
    """Yields the other programs: of an update, of the reduction over replicas, of logs.

    Args:
        builder: of the pipeline, for one shape of batch.
        trains: whether there are updates.
    """
    stages = range(len(builder.stages.split.stages))
    last = stages[-1]
    if trains:
        for stage in stages:
            yield ProgramMaker("zeros", stage, partial(builder.zeros, stage))
    if isinstance(builder, ReplicaStageBuilder):
        for stage in stages:
            yield ProgramMaker("reduce_replicas", stage, partial(builder.reduce_replicas, stage))
    if trains:
        update = builder.stages.update
        for stage, part in update.partial.items():
            make = partial(builder.update_part, "partial", stage, part)
            yield ProgramMaker("partial", stage, make)
        if update.shared is not None:
            make = partial(builder.update_part, "shared", last, update.shared)
            yield ProgramMaker("shared", last, make)
        for stage, part in update.final.items():
            make = partial(builder.update_part, "final", stage, part)
            yield ProgramMaker("final", stage, make)
    if not any(stage.results for stage in builder.stages.split.stages):
        yield ProgramMaker("logs", last, partial(builder.logs, last))
