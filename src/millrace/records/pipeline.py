"""What the host did to run a pipeline."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PipelineStatistics:
    """Counts of the last execution of a pipelined model, and of all executions before it."""

    executions: int = 0
    tasks: int = 0
    dispatch_seconds: float = 0.0  # the host, over all tasks
    last_tasks: int = 0  # of the last execution
    last_task_seconds: float = 0.0  # the host, median over the tasks of the last execution
    last_in_flight: tuple[int, ...] = ()  # most activation sets that each stage held at once
