"""The tasks of each stage of a pipeline at each tick, as the IPU counts them.

Slot k of a micro-batch is the forward of stage k, from k = N on the backward of stage 2N - 1 - k.

Grouped       slot k of micro-batch m at tick m + k       count + 2N - 1 ticks,
                                                          count + N - 1 without backward
Interleaved   at 2m + k                                   2 count + 2N - 2
Sequential    at 2N m + k                                 2N count

    Grouped, 2 stages, 3 micro-batches         stage 0   0F0  0F1  0F2  0B0  0B1  0B2
                                               stage 1        1F0  1B0  1B1  1B2
                                                                   1F1  1F2

The native schedules have no ticks, only orders, which must equal those of the rows here.
"""

from millrace.base.options import whole_number
from millrace.run.schedules.task import Pass, Task
from millrace_ipu.ipu.ops.schedules import PipelineSchedule, schedule_of


def schedule_table(
    schedule: PipelineSchedule | None, num_stages: int, count: int, training: bool = True
) -> tuple[tuple[tuple[Task, ...], ...], ...]:
    """Returns the tasks of each stage at each tick.

    Args:
        schedule: None is Grouped.
        num_stages: stages, each on a device of its own.
        count: micro-batches.
        training: whether there is a backward.
    """
    whole_number("num_stages", num_stages, 1)
    whole_number("count", count, 1)
    schedule = schedule_of(schedule)
    slots = 2 * num_stages if training else num_stages
    interleaved = schedule is PipelineSchedule.Interleaved and training
    step = 2 if interleaved else 1
    if schedule is PipelineSchedule.Sequential:
        step = slots
    ticks = (count - 1) * step + slots
    table: list[list[list[Task]]] = [[[] for _ in range(ticks)] for _ in range(num_stages)]
    for slot in reversed(range(slots)):  # backwards come first: they are of earlier micro-batches
        forward = slot < num_stages
        stage = slot if forward else slots - 1 - slot
        for m in range(count):
            kind = Pass.FORWARD if forward else Pass.BACKWARD
            table[stage][m * step + slot].append(Task(stage, kind, m))
    return tuple(tuple(map(tuple, row)) for row in table)
