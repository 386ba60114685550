"""The programs that a pipeline runs, in the order in which its tasks need them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from millrace.base.devices import DeviceGroup
from millrace.compilation.executables.executable import Executable
from millrace.programs.plan import Mode
from millrace.run.pipelines.programs.builder import UPDATE_PARTS, StageBuilder
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


@dataclass(frozen=True, slots=True)
class StagePrograms:
    """All programs that one update of a pipeline runs."""

    builder: StageBuilder
    groups: tuple[DeviceGroup, ...]  # of each stage
    order: tuple[Task, ...]  # of the tasks of the update
    executables: Mapping[tuple[str, int], Executable]  # by name and stage, of those here


# Those of an update of the weights, by name.
UPDATE_PROGRAMS = ("reduce_replicas", *UPDATE_PARTS)


def pipeline_programs(
    builder: StageBuilder, orders: Orders, is_first: bool
) -> Iterator[tuple[str, int]]:
    """Yields the names and stages of all programs of a pipeline, for one shape of batch.

    Args:
        builder: of the pipeline, for this shape.
        orders: of its tasks.
        is_first: whether this is the first shape; batches of all shapes are updated with the
            programs of the first.
    """
    plan, stages = builder.layouts.plan, builder.stages.split.stages
    trains, kinds = plan.mode is Mode.TRAIN, {Pass.FORWARD}
    if trains:
        kinds |= {task.kind for task in orders.of(plan.accumulation.steps)[1]}
    for stage in range(len(stages)):
        for kind in Pass:
            if kind not in kinds:
                continue
            # The first stage has no input that an earlier one waits for.
            if kind is not Pass.BACKWARD_INPUT or builder.stages.passes(stage).returns:
                yield kind.program, stage
    if is_first:
        names = ["zeros"] * trains + ["reduce_replicas"] * (builder.layouts.replicas > 1)
        yield from ((name, stage) for name in names for stage in range(len(stages)))
        if trains:
            yield from builder.stages.update.parts
        if not any(stage.results for stage in stages):
            yield "logs", len(stages) - 1
