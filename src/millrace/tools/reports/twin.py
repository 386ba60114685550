"""The simulated twin of a measured update: the same tasks, each with the mean cost of its kind.

    measured    |F0 F1--    B0---  B1----      noise, and a host that dispatches late
    simulated   |F0 F1-   B0----  B1---        the schedule alone

Where both end at the same time, the schedule explains the update. What the measured one takes
longer is not the schedule's: tasks of unequal length, or a host that dispatches late.

The costs are means, not medians: on a busy machine a few tasks and transfers take many times the
median, and the sum of the means is the time that all of them took.
"""

from collections.abc import Iterable
from statistics import fmean

from millrace.base.records.timeline import Span, Timeline
from millrace.base.records.trace import ExecutionTrace
from millrace.errors import ScheduleError
from millrace.run.schedules.concurrent import ConcurrentSchedule
from millrace.run.schedules.costs import task_times
from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.simulate import Waits, simulate
from millrace.run.schedules.task import Pass, Schedule, Task

SAMPLE = 10_000  # tasks among which transfers are measured


def simulated_twin(trace: ExecutionTrace) -> Timeline | None:
    """Simulates the tasks of a trace, in the same order on each group.

    Args:
        trace: of an update of a pipeline, or of micro-batches of its evaluation, with the tasks of
            all processes.

    Returns:
        Times in seconds, from 0; None for a trace without tasks, and for one that lacks tasks for
        which others wait, such as that of one of several processes.
    """
    if not trace.spans:
        return None
    schedule = schedule_of(trace)
    waits = dependencies(schedule)
    costs = {key: fmean(times) for key, times in task_times(trace.spans).items()}
    transfer = fmean(waited_transfers(trace.spans[:SAMPLE], schedule, waits) or [0.0])
    try:
        return simulate(schedule, lambda task: costs[task.stage, task.kind], transfer, waits)
    except ScheduleError:
        return None


def schedule_of(trace: ExecutionTrace) -> Schedule:
    """Returns the tasks of each device group in the order in which they ran."""
    rows: list[list[Task]] = [[] for _ in range(trace.num_groups)]
    for span in trace.spans:
        rows[span.group].append(Task(span.stage, Pass(span.kind), span.micro_batch))
    schedule = tuple(map(tuple, rows))
    return ConcurrentSchedule(schedule, trace.levels) if trace.levels else schedule


def waited_transfers(spans: Iterable[Span], schedule: Schedule, waits: Waits) -> list[float]:
    """Returns the seconds of each transfer for which a group waits.

    They are those from the end of the task that sends to the start of the task that takes. A
    transfer that arrives while the group is busy costs nothing.
    """
    tasks = list(map(iter, schedule))
    by_task = {next(tasks[span.group]): span for span in spans}
    free: dict[int, float] = {}  # by group, the end of its last task
    transfers: list[float] = []
    for task, span in by_task.items():
        before = free.get(span.group, 0.0)
        free[span.group] = max(span.end, before)
        ends = [
            sender.end
            for other in waits[task]
            if (sender := by_task.get(other)) is not None and sender.group != span.group
        ]
        if ends and max(ends) >= before:
            transfers.append(max(span.start - max(ends), 0.0))
    return transfers
