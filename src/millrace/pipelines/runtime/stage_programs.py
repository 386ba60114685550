"""All programs that a pipeline runs, in the order in which stages need them."""

from collections.abc import Callable, Collection, Iterator
from functools import partial

from millrace.pipelines.programs.replica_stages import ReplicaStageBuilder
from millrace.pipelines.programs.stages import StageBuilder
from millrace.pipelines.runtime.orders import Orders
from millrace.plan import Mode, Plan
from millrace.schedules.task import Pass
from millrace.steps.program import Program

StageProgram = tuple[str, int, Callable[[], Program]]  # name, stage, what makes it


def pipeline_programs(
    builder: StageBuilder, orders: Orders, plan: Plan, is_first: bool
) -> list[StageProgram]:
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
        _, order = orders.of(plan.accumulation.steps, builder.split.values)
        kinds = {task.kind for task in order}
    updates = update_programs(builder, trains) if is_first else ()
    return [*task_programs(builder, kinds), *updates]


def task_programs(builder: StageBuilder, kinds: Collection[Pass]) -> Iterator[StageProgram]:
    """Yields the programs of a schedule's tasks.

    Args:
        builder: of the pipeline, for one shape of batch.
        kinds: of the tasks.
    """
    for stage in range(len(builder.split.stages)):
        yield "forward", stage, partial(builder.forward, stage)
        if Pass.BACKWARD in kinds:
            yield "backward", stage, partial(builder.backward, stage)
        if Pass.BACKWARD_INPUT in kinds and builder.passes(stage).returns:
            yield "backward_input", stage, partial(builder.backward_input, stage)
        if Pass.BACKWARD_WEIGHT in kinds:
            yield "backward_weight", stage, partial(builder.backward_weight, stage)


def update_programs(builder: StageBuilder, trains: bool) -> Iterator[StageProgram]:
    """Yields the programs around the tasks: of an update, of what replicas add up, of logs.

    Args:
        builder: of the pipeline, for one shape of batch.
        trains: whether there are updates.
    """
    stages = range(len(builder.split.stages))
    if trains:
        for stage in stages:
            yield "zeros", stage, partial(builder.zeros, stage)
    if isinstance(builder, ReplicaStageBuilder):
        for stage in stages:
            yield "settle", stage, partial(builder.settle, stage)
    if trains:
        update = builder.update
        for stage, part in update.partial.items():
            yield "partial", stage, partial(builder.part, "partial", stage, part)
        if update.shared is not None:
            yield "shared", stages[-1], partial(builder.part, "shared", stages[-1], update.shared)
        for stage, part in update.final.items():
            yield "final", stage, partial(builder.part, "final", stage, part)
    if not any(stage.results for stage in builder.split.stages):
        yield "logs", stages[-1], partial(builder.logs, stages[-1])
