"""The updates that may be chosen: layouts of the devices, micro-batches, schedules and savings.

    4 devices     4 replicas in one piece | 2 replicas of 2 stages | 1 replica of 4 stages
    micro-batch   all rows of a replica, half of them, a quarter, ...
    savings       sharded optimizer state and weights, offloading, recomputation within a budget

To add a schedule, add a line to `SCHEDULES`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from millrace._compat.jax_memory import host_memory
from millrace._compat.keras_layers import layers_without_jit
from millrace.base.devices import home
from millrace.base.records.training_plan import StageOfCall, UpdatePlan
from millrace.errors import MillraceError
from millrace.programs.plan import BatchSpec, Mode
from millrace.programs.steps.own_step import has_own_step
from millrace.run.fit.pipelined_model import StageAssignment
from millrace.run.fit.setup import Setup
from millrace.run.pipelines.assignment.assignment import Assignment, to_json
from millrace.run.pipelines.assignment.balance import balanced

MOST_SIZES = 5  # of micro-batches that are compared for one pipeline and schedule
MOST_PER_STAGE = 16  # micro-batches of a pipeline, for each stage


@dataclass(frozen=True, slots=True)
class PlannedSchedule:
    """A schedule that plans compare, and the stages that it needs."""

    name: str
    stages_per_group: int = 1
    goes_round: bool = False  # stage by stage over the devices, which is no default mapping


# The first is compiled for each layout; the others where they are predicted to be faster or to
# need less memory.
SCHEDULES = (
    PlannedSchedule("1f1b"),
    PlannedSchedule("zero_bubble"),
    PlannedSchedule("looped", 2, goes_round=True),
    PlannedSchedule("sequential"),
    PlannedSchedule("zb_v", 2),
    PlannedSchedule("v_half", 2),
    PlannedSchedule("v_min", 2),
)


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """Replicas, and the stages of each."""

    replicas: int
    groups: int  # devices of a replica
    assignment: Assignment | None  # None for a model in one piece
    stages: StageAssignment
    cut: tuple[StageOfCall, ...] = ()
    is_balanced: bool = True  # whether the cut is that of "auto"

    @property
    def num_stages(self) -> int:
        """Stages of a replica."""
        return 1 if self.assignment is None else self.assignment.num_stages

    @property
    def schedules(self) -> tuple[PlannedSchedule, ...]:
        """Schedules for so many stages on so many devices; none for one piece."""
        if self.assignment is None:
            return ()
        return tuple(
            each for each in SCHEDULES if each.stages_per_group * self.groups == self.num_stages
        )


# (setup, replicas, groups, stages) -> the stages of the layer calls
Cut = Callable[[Setup, int, int, int], Assignment]


def layouts(
    setup: Setup, rows: int, cut: Cut, only_one_piece: bool = False
) -> Iterator[PlannedLayout]:
    """Yields the layouts that share the rows of an update out equally.

    Args:
        setup: of the model.
        rows: of one update.
        cut: returns an assignment to so many stages.
        only_one_piece: whether pipelines are left out.
    """
    number, model = len(setup.devices), setup.model
    own = None if setup.stages.is_open else setup.stages.assignment()
    if own is None or own.stages is not None:  # scopes in `call` cannot be left out
        one_piece = StageAssignment(model)
        one_piece.reset()
        if rows % number == 0:
            yield PlannedLayout(number, 1, None, one_piece)
    shares = setup.options.accumulation.synchronized_statistics
    if only_one_piece or shares or has_own_step(model, Mode.TRAIN) or layers_without_jit(model):
        return  # no pipeline
    for groups in range(2, number + 1):
        if number % groups or rows % (number // groups):
            continue
        for stages in dict.fromkeys(each.stages_per_group * groups for each in SCHEDULES):
            is_own = own is not None and own.num_stages == stages
            if own is not None and own.stages is None and not is_own:
                continue
            replicas = number // groups
            try:
                assignment = own if is_own and own else cut(setup, replicas, groups, stages)
            except MillraceError:  # fewer layer calls than stages
                continue
            yield of_assignment(setup, replicas, groups, assignment, not is_own)


def of_assignment(
    setup: Setup, replicas: int, groups: int, assignment: Assignment, is_balanced: bool
) -> PlannedLayout:
    """Returns the layout of an assignment to stages."""
    if assignment.stages is None:
        return PlannedLayout(replicas, groups, assignment, setup.stages, (), is_balanced)
    stages = StageAssignment(setup.model)
    stages.put(assignment)
    calls = to_json(assignment, setup.model)["calls"] or []
    cut = tuple((name, index, stage) for name, index, stage in calls)
    return PlannedLayout(replicas, groups, assignment, stages, cut, is_balanced)


def auto_cut(batch: BatchSpec) -> Cut:
    """Returns a function that balances the FLOPs of a batch."""

    def cut(setup: Setup, replicas: int, groups: int, stages: int) -> Assignment:
        return balanced(setup.model, stages, batch)

    return cut


def base(layout: PlannedLayout, rows: int, updates: int) -> UpdatePlan:
    """Returns the update of a layout that is compiled first: without any saving.

    Args:
        layout: of the devices.
        rows: of one update.
        updates: in one execution.
    """
    per_replica = rows // layout.replicas
    if layout.assignment is None:
        return _update(layout, None, per_replica, 1, updates)
    counts = micro_batch_counts(layout, per_replica)
    wanted = 2 * layout.groups
    count = next((each for each in counts if each >= wanted), counts[-1])
    return _update(layout, layout.schedules[0], per_replica, count, updates)


def updates_of(layout: PlannedLayout, setup: Setup, rows: int, updates: int) -> list[UpdatePlan]:
    """Returns all updates of a layout, without recomputation.

    Args:
        layout: of the devices.
        setup: of the model.
        rows: of one update.
        updates: in one execution.
    """
    per_replica = rows // layout.replicas
    schedules: Sequence[PlannedSchedule | None] = layout.schedules or (None,)
    counts = micro_batch_counts(layout, per_replica)
    if setup.options.accumulation.synchronized_statistics:  # parts have statistics of their own
        counts = counts[:1]
    plain = [
        _update(layout, schedule, per_replica, count, updates)
        for schedule in schedules
        for count in counts
    ]
    return [
        replace(each, **dict.fromkeys(saving, True))
        for each in plain
        for saving in _savings(layout, setup)
    ]


def micro_batch_counts(layout: PlannedLayout, rows: int) -> list[int]:
    """Returns numbers of micro-batches that share out the rows of a replica equally.

    Each is at least twice the one before. A pipeline has as many as it has devices, if it can.
    """
    divisors = [count for count in range(1, rows + 1) if rows % count == 0]
    if layout.assignment is not None:
        enough = [each for each in divisors if each >= layout.groups]
        most = MOST_PER_STAGE * layout.num_stages
        divisors = [each for each in enough if each <= most] or enough[:1] or divisors[-1:]
    counts: list[int] = []
    for each in divisors:
        if not counts or each >= 2 * counts[-1]:
            counts.append(each)
    return counts if layout.assignment is None else counts[:MOST_SIZES]


def _savings(layout: PlannedLayout, setup: Setup) -> Iterator[tuple[str, ...]]:
    """Yields fields of an update to set, the cheapest saving first."""
    sharded: list[tuple[str, ...]] = [()]
    if layout.replicas > 1:
        sharded += [("shard_optimizer_state",), ("shard_optimizer_state", "shard_weights")]
    offloaded: list[tuple[str, ...]] = [()]
    if host_memory(home(setup.devices)) is not None:
        offloaded.append(("offload_optimizer_state",))
    for offload in offloaded:
        for shard in sharded:
            yield (*shard, *offload)


def _update(
    layout: PlannedLayout, schedule: PlannedSchedule | None, rows: int, count: int, updates: int
) -> UpdatePlan:
    if schedule is None:
        return UpdatePlan(
            batch_size=rows,
            micro_batch=rows // count if count > 1 else None,
            steps_per_execution=updates * layout.replicas,
            replicas=layout.replicas,
        )
    stages, groups = layout.num_stages, layout.groups
    around = tuple(stage % groups for stage in range(stages))
    return UpdatePlan(
        batch_size=rows // count,
        steps_per_execution=updates * count * layout.replicas,
        replicas=layout.replicas,
        stages=stages,
        groups=groups,
        cut=layout.cut,
        is_balanced=layout.is_balanced,
        schedule=schedule.name,
        device_mapping=around if schedule.goes_round else None,
        accumulation=count,
    )
