"""V-shaped schedules: each device group has one stage on the way out, and one on the way back.

    group 0   stage 0             stage 5        a micro-batch takes four paths:
    group 1     stage 1         stage 4          F out and back, then I out and back
    group 2       stage 2  stage 3

A group holds a micro-batch for long in one of its stages, and for a short time in the other. The
first group holds it longest on the way out, the last one equally long in both. The sum is the same
for all groups, so none needs more memory than another, and a limit applies to all of them.

A schedule is made task by task, each one unit long: in every unit a group runs the first task that
its order of forwards and backward_inputs allows, whose inputs are there, and which fits its memory;
or else a backward_weight, for which nobody waits. The order is a list of preferences (ZB-V), or
that of a building block: the times of one micro-batch, repeated every 6 units (V-Half, V-Min).
Source: Qi et al. 2024, arXiv 2405.15362, sections 3 and 4.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from millrace.errors import ScheduleError
from millrace.options.default_devices import v_devices
from millrace.schedules.task import Pass, Schedule, Task, check_sizes

# The paths of a micro-batch, each of which visits all groups; and the backward_weights.
F_OUT, F_BACK, I_OUT, I_BACK, _W_FIRST, _W_LAST = range(6)
# I goes through the stages in reverse, so its way out is through those of the way back.
_TASKS = (
    (False, Pass.FORWARD),
    (True, Pass.FORWARD),
    (True, Pass.BACKWARD_INPUT),
    (False, Pass.BACKWARD_INPUT),
    (True, Pass.BACKWARD_WEIGHT),
    (False, Pass.BACKWARD_WEIGHT),
)
_INTERVAL = len(_TASKS)  # of micro-batches: with it, a group has a task in every unit of time

# The paths to try on a group, given its number of tasks done, by path.
Preferences = Callable[[int, Sequence[int]], Iterable[int]]


@dataclass(frozen=True, slots=True)
class BuildingBlock:
    """The times of the forwards and backward_inputs of one micro-batch.

    No two of a group have the same remainder by 6, so that micro-batches fit between each other.
    """

    steps: tuple[int, int, int, int]  # from one group to the next, on each path
    ends: tuple[int, int, int]  # from one path to the next, on the group where it ends

    def starts(self, num_groups: int) -> list[tuple[int, int, int, int]]:
        """Returns for each group the times of its tasks on the four paths."""
        out, back, again, home = self.steps
        length = num_groups - 1
        f_back = out * length + self.ends[0]
        i_out = f_back + back * length + self.ends[1]
        i_back = i_out + again * length + self.ends[2]
        return [
            (
                out * group,
                f_back + back * (length - group),
                i_out + again * group,
                i_back + home * (length - group),
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


def repeated(
    block: BuildingBlock, num_groups: int, num_micro_batches: int, max_sets: int
) -> Schedule:
    """Repeats a building block, without the idle time that this leaves.

    Args:
        block: whose order of tasks each group keeps.
        num_groups: device groups.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        max_sets: activation sets that a group may hold; at least as many as the block needs.
    """
    orders = [
        [
            path
            for _, path in sorted(
                (start + _INTERVAL * m, path)
                for path, start in enumerate(starts)
                for m in range(num_micro_batches)
            )
        ]
        for starts in block.starts(num_groups)
    ]

    def next_of_order(group: int, done: Sequence[int]) -> Sequence[int]:
        place = sum(done[:_W_FIRST])
        return orders[group][place : place + 1]

    return within_memory(num_groups, num_micro_batches, max_sets, next_of_order)


def within_memory(
    num_groups: int, num_micro_batches: int, max_sets: int, preferences: Preferences
) -> Schedule:
    """Lists tasks unit by unit, as described above.

    Args:
        num_groups: device groups.
        num_micro_batches: micro-batches accumulated into the update, per replica.
        max_sets: activation sets that a group may hold, from F to W; at least 2.
        preferences: the paths that a group may take its next task from, the first one first.

    Returns:
        For each device group `6 * num_micro_batches` tasks.
    """
    sources = [
        [_source(group, path, num_groups) for path in range(_INTERVAL)]
        for group in range(num_groups)
    ]
    done = [[0] * _INTERVAL for _ in range(num_groups)]
    rows: list[list[Task]] = [[] for _ in range(num_groups)]
    left = _INTERVAL * num_groups * num_micro_batches
    # Some group always has a task. On a group that lacks a forward of the oldest micro-batch, that
    # stage holds no set, as micro-batches come in order; and the other one never holds all sets.
    while left:
        chosen: list[tuple[int, int]] = []
        for group, own in enumerate(done):
            first = own[F_OUT] - own[_W_LAST]
            is_full = first + own[F_BACK] - own[_W_FIRST] >= max_sets
            for path in (*preferences(group, own), _W_FIRST, _W_LAST):
                if path in (F_OUT, F_BACK) and (
                    is_full or (path == F_OUT and first >= max_sets - 1)
                ):
                    continue
                source = sources[group][path]
                ready = num_micro_batches if source is None else done[source[0]][source[1]]
                if ready > own[path]:
                    chosen.append((group, path))
                    break
        for group, path in chosen:
            on_way_back, kind = _TASKS[path]
            stage = 2 * num_groups - 1 - group if on_way_back else group
            rows[group].append(Task(stage, kind, done[group][path]))
            done[group][path] += 1
        left -= len(chosen)
    return tuple(map(tuple, rows))


def _source(group: int, path: int, num_groups: int) -> tuple[int, int] | None:
    """Returns the group and path of the task before; None for the first of a micro-batch."""
    if path >= _W_FIRST:
        return group, path - 2
    before = group + 1 if path in (F_BACK, I_BACK) else group - 1
    if 0 <= before < num_groups:
        return before, path
    return (group, path - 1) if path else None
