"""The costs of an update, such as measured ones: tasks, transfers, dispatch, and what follows them.

    host      dispatch 0F0, 0F1, ...        of each task, ahead of the device group
    group 0   |0F0 0F1 ... 0B0 0B1          tasks
    link          >>>      <<<              transfers
    all                           sum of gradients over replicas, update of the weights

All are in one unit of time, which is that of the result.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.base.records.timeline import Span
from millrace.run.schedules.task import Pass

PassOfStage = tuple[int, Pass]

StageCosts = Mapping[Pass, Sequence[float]]
"""The time of each pass, by stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCosts:
    """The costs of one update of a pipeline."""

    tasks: StageCosts
    transfer: float = 0.0  # of a result from one device group to another
    dispatch: float = 0.0  # of a task, by the host of its device group
    gradient_sum: float = 0.0  # over replicas, once in an update
    update: float = 0.0  # of the weights of a device group


def equal_stages(cost: Mapping[Pass, float], num_stages: int) -> StageCosts:
    """Returns costs that are the same for all stages."""
    return {kind: (each,) * num_stages for kind, each in cost.items()}


def task_times(spans: Iterable[Span]) -> dict[PassOfStage, list[float]]:
    """Returns the durations of tasks, by stage and pass."""
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    for span in spans:
        times[span.stage, span.kind].append(span.duration)
    return {(stage, Pass(kind)): each for (stage, kind), each in times.items()}


def cost_of_pass(costs: Mapping[PassOfStage, float], stage: int, kind: Pass) -> float:
    """Returns a cost; of the form of the backward pass that has none, by the other form."""
    if (cost := costs.get((stage, kind))) is not None:
        return cost
    if kind is Pass.BACKWARD:
        halves = Pass.BACKWARD_INPUT, Pass.BACKWARD_WEIGHT
        return sum(costs.get((stage, half), 0.0) for half in halves)
    return costs.get((stage, Pass.BACKWARD), 0.0) / 2
