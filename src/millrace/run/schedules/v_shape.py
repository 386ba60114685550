"""V-shaped schedules: each device group has one stage on the way out, and one on the way back.

    group 0   stage 0             stage 5        a micro-batch takes four paths:
    group 1     stage 1         stage 4          F out and back, then I out and back
    group 2       stage 2  stage 3

A group holds a micro-batch for long in one of its stages, and for a short time in the other: the
first group from its first path to its last, the last group for half of that time in each stage. The
sum is the same for all groups, so none needs more memory than another.

A schedule repeats a pattern, the times of the F and I of one micro-batch, every 6 units of time:
one for each task of a group. The pattern decides the time from F to I, and so the memory. In its
order a group runs each F and I as soon as it can; in the idle time that is left, and where its
memory is full, it runs a W, for which nobody waits. Source: Qi et al. 2024, arXiv 2405.15362,
where a pattern is called a building block.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from millrace.base.options.default_devices import v_devices
from millrace.errors import ScheduleError
from millrace.run.schedules.task import Pass, Schedule, Task, check_sizes

# The paths of a micro-batch, each of which visits all groups, and its W. I goes through the stages
# in reverse, so its way out is through those of the way back.
TASKS = (
    (False, Pass.FORWARD),
    (True, Pass.FORWARD),
    (True, Pass.BACKWARD_INPUT),
    (False, Pass.BACKWARD_INPUT),
    (True, Pass.BACKWARD_WEIGHT),
    (False, Pass.BACKWARD_WEIGHT),
)
INTERVAL = len(TASKS)  # between micro-batches: a group then has a task in every unit of time
PATHS = 4
_FORWARDS, _WEIGHTS = range(2), range(PATHS, INTERVAL)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The times of the F and I of one micro-batch.

    No two of a group have the same remainder by 6, so that micro-batches fit between each other.
    """

    steps: tuple[int, int, int, int]  # from one group to the next, on each path
    ends: tuple[int, int, int]  # from one path to the next, on the group where it ends

    def starts(self, num_groups: int) -> list[tuple[int, int, int, int]]:
        """Returns for each group the times of its tasks on the four paths."""
        length = num_groups - 1
        first, second, third, fourth = self.steps
        back = first * length + self.ends[0]
        out_again = back + second * length + self.ends[1]
        last = out_again + third * length + self.ends[2]
        return [
            (
                first * group,
                back + second * (length - group),
                out_again + third * group,
                last + fourth * (length - group),
            )
            for group in range(num_groups)
        ]


def groups_of_v(schedule: str, num_stages: int, num_micro_batches: int) -> int:
    """Returns the number of device groups: half of the stages.

    Args:
        schedule: its name, for messages.
        num_stages: stages in the pipeline.
        num_micro_batches: micro-batches accumulated into the update, per replica.

    Raises:
        ScheduleError: if a number is below 1, or that of the stages is odd.
    """
    check_sizes(schedule, num_stages=num_stages, num_micro_batches=num_micro_batches)
    if num_stages % 2:
        fewer = f"{num_stages - 1} or " if num_stages > 1 else ""
        raise ScheduleError(
            f"{schedule} has two stages on each device group. Received: num_stages={num_stages}. "
            f"Assign {fewer}{num_stages + 1} stages. The device_mapping of {num_stages + 1} is "
            f"{list(v_devices(num_stages + 1))}, which is the default."
        )
    return num_stages // 2


def check_v_groups(schedule: str, groups: Sequence[int], num_stages: int) -> None:
    """Refuses device groups that do not form a V.

    Args:
        schedule: its name, for the message.
        groups: the device group of each stage.
        num_stages: stages in the pipeline, an even number.

    Raises:
        ScheduleError: naming the mapping to set.
    """
    order = list(dict.fromkeys(groups))  # by first appearance
    expected = list(v_devices(num_stages))
    if [order.index(group) for group in groups] != expected:
        raise ScheduleError(
            f"The schedule {schedule} goes out over the device groups and back, so each has two "
            f"stages. Received: device groups {list(groups)} for {num_stages} stages. "
            f"Set device_mapping={expected}."
        )


def repeated(pattern: Pattern, num_groups: int, num_micro_batches: int, max_sets: int) -> Schedule:
    """Repeats a pattern for each micro-batch, without the idle time that it has.

    Args:
        pattern: of one micro-batch.
        num_groups: device groups.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        max_sets: activation sets that a group may hold, each from F to W; at least as many as it
            holds if micro-batches begin every 6 units.

    Returns:
        For each device group `6 * num_micro_batches` tasks.

    Raises:
        ScheduleError: if the memory is not enough.
    """
    orders = [_order_of_paths(starts, num_micro_batches) for starts in pattern.starts(num_groups)]
    sources = [
        [_source(group, path, num_groups) for path in range(INTERVAL)]
        for group in range(num_groups)
    ]
    done = [[0] * INTERVAL for _ in range(num_groups)]  # tasks of each group and path
    rows: list[list[Task]] = [[] for _ in range(num_groups)]
    left = INTERVAL * num_groups * num_micro_batches
    # One unit of time after another. With enough memory it ends: in the times of the pattern each
    # task finds its inputs, and a group that is full before its next F has a W to run.
    while left:
        chosen: list[tuple[int, int]] = []
        for group, own in enumerate(done):
            place = sum(own[:PATHS])
            held = own[0] + own[1] - own[4] - own[5]
            for path in (*orders[group][place : place + 1], *_WEIGHTS):
                if path in _FORWARDS and held >= max_sets:
                    continue
                source = sources[group][path]
                ready = num_micro_batches if source is None else done[source[0]][source[1]]
                if ready > own[path]:
                    chosen.append((group, path))
                    break
        if not chosen:
            raise ScheduleError(
                f"max_sets={max_sets} is less than this pattern needs on {num_groups} "
                "device groups, which would wait for each other. Set it to more."
            )
        for group, path in chosen:
            on_way_back, kind = TASKS[path]
            stage = 2 * num_groups - 1 - group if on_way_back else group
            rows[group].append(Task(stage, kind, done[group][path]))
            done[group][path] += 1
        left -= len(chosen)
    return tuple(map(tuple, rows))


def _order_of_paths(starts: Sequence[int], num_micro_batches: int) -> list[int]:
    """Returns the path of each F and I of a group, by their times."""
    times = [
        (start + INTERVAL * m, path)
        for path, start in enumerate(starts)
        for m in range(num_micro_batches)
    ]
    return [path for _, path in sorted(times)]


def _source(group: int, path: int, num_groups: int) -> tuple[int, int] | None:
    """Returns the group and path of the task before; None for the first of a micro-batch."""
    if path >= PATHS:
        return group, path - 2
    before = group + 1 if path % 2 else group - 1
    if 0 <= before < num_groups:
        return before, path
    return (group, path - 1) if path else None
