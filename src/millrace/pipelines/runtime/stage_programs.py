"""All programs that a pipeline runs, in the order in which its tasks need them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from millrace.devices import DeviceGroup
from millrace.pipelines.programs.builder import StageBuilder
from millrace.pipelines.programs.split import Value
from millrace.plan import Mode, Plan
from millrace.schedules.rendezvous import check_rendezvous, events, walk
from millrace.schedules.simulate import merged
from millrace.schedules.task import Pass, Schedule, Task
from millrace.steps.program import Program


class Orders:
    """Makes the schedules of one pipeline, and merges each into one order."""

    def __init__(self, make_schedule: Callable[[int], Schedule], groups: Sequence[DeviceGroup]):
        """Makes none yet.

        Args:
            make_schedule: returns the schedule of an update of so many micro-batches.
            groups: of each stage.
        """
        self._make_schedule, self._groups = make_schedule, groups
        self._found: dict[int, tuple[Schedule, tuple[Task, ...]]] = {}

    def of(
        self, num_micro_batches: int, values: Iterable[Value]
    ) -> tuple[Schedule, tuple[Task, ...]]:
        """Returns the schedule of an update, and its tasks in the order of their dispatch.

        Args:
            num_micro_batches: of the update.
            values: what passes between the stages.
        """
        if num_micro_batches not in self._found:
            schedule = self._make_schedule(num_micro_batches)
            self._check_processes(schedule, values)
            self._found[num_micro_batches] = schedule, merged(schedule)
        return self._found[num_micro_batches]

    def _check_processes(self, schedule: Schedule, values: Iterable[Value]) -> None:
        """Proves that no process of several waits for ever; all of them walk one order."""
        groups = [self._groups[tasks[0].stage] for tasks in schedule]
        if all(group.is_local for group in groups):
            return
        owners = [{device.process_index for device in group.devices} for group in groups]
        links = {(value.producer, stage) for value in values for stage in value.consumers}
        check_rendezvous(schedule, owners, events(schedule, owners, walk(schedule, links)))


ProgramMaker = tuple[str, int, Callable[[], Program]]  # name, stage, what makes it


def pipeline_programs(
    builder: StageBuilder, orders: Orders, plan: Plan, is_first: bool
) -> list[ProgramMaker]:
    """Returns all programs of a pipeline, for one shape of batch.

    Args:
        builder: of the pipeline, for this shape.
        orders: of its tasks.
        plan: of its mode.
        is_first: whether no other shape was before, with which batches of this one would have
            their updates.
    """
    trains, kinds = plan.mode is Mode.TRAIN, set[Pass]()
    if trains:
        _, order = orders.of(plan.accumulation.steps, builder.stages.split.values)
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
        yield "forward", stage, partial(builder.forward, stage)
        if Pass.BACKWARD in kinds:
            yield "backward", stage, partial(builder.backward, stage)
        if Pass.BACKWARD_INPUT in kinds and builder.stages.passes(stage).returns:
            yield "backward_input", stage, partial(builder.backward_input, stage)
        if Pass.BACKWARD_WEIGHT in kinds:
            yield "backward_weight", stage, partial(builder.backward_weight, stage)


def update_programs(builder: StageBuilder, trains: bool) -> Iterator[ProgramMaker]:
    """Yields the programs around the tasks: of an update, of what replicas add up, of logs.

    Args:
        builder: of the pipeline, for one shape of batch.
        trains: whether there are updates.
    """
    stages = range(len(builder.stages.split.stages))
    if trains:
        for stage in stages:
            yield "zeros", stage, partial(builder.zeros, stage)
    replicated = builder.replicated
    if replicated is not None:
        for stage in stages:
            yield "reduce_replicas", stage, partial(replicated.reduce_replicas, stage)
    if trains:
        update = builder.stages.update
        for stage, part in update.partial.items():
            yield "partial", stage, partial(builder.part, "partial", stage, part)
        if update.shared is not None:
            yield "shared", stages[-1], partial(builder.part, "shared", stages[-1], update.shared)
        for stage, part in update.final.items():
            yield "final", stage, partial(builder.part, "final", stage, part)
    if not any(stage.results for stage in builder.stages.split.stages):
        yield "logs", stages[-1], partial(builder.logs, stages[-1])
