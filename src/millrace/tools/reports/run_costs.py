"""The costs of an update that a run has measured, for simulations of other sizes and schedules.

RUN/traces*.jsonl     F of stage 0: 1.3, 1.2, 1.2, 9.1 ms ... -> median 1.2 ms
                      from B of stage 1 to the B of stage 0 that waits for it -> a transfer
                      "update" of each group -> the update
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from millrace.base.records.run import RunRecords
from millrace.base.records.trace import ExecutionTrace
from millrace.errors import DataError
from millrace.run.schedules.costs import StageCosts, cost_of_pass, equal_stages, task_times
from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.task import Pass
from millrace.tools.reports.twin import SAMPLE, schedule_of, waited_transfers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Medians over the updates of a pipeline that left a trace, in seconds."""

    tasks: StageCosts  # with both forms of the backward pass
    transfer: float  # where a group waited for it
    update: float  # of the group where it takes longest
    schedule: str  # its name
    stages: int
    groups: int
    micro_batches: int
    traces: int  # measured updates

    def of_stages(self, number: int) -> StageCosts:
        """Returns the costs of another number of stages, each of which is like the mean here."""
        if number == self.stages:
            return self.tasks
        return equal_stages({kind: fmean(each) for kind, each in self.tasks.items()}, number)


def costs_of_run(run: RunRecords) -> RunCosts:
    """Returns the measured costs of the pipeline that a run trained last.

    Raises:
        DataError: if the run has not traced all stages of a pipeline.
    """
    trained = [each for each in run.traces if each.mode == "train" and each.spans]
    if not trained:
        raise DataError(
            f"{run.path} has no measured tasks. Set Strategy(report_dir=...) or "
            "MILLRACE_REPORT_DIR, call fit of a model with pipeline stages, and give that "
            "directory; or leave it out, and give the times as numbers."
        )
    last = trained[-1]
    traces = [each for each in trained if _pipeline(each) == _pipeline(last)]
    micro_batches = max(span.micro_batch for span in last.spans) + 1
    return RunCosts(
        tasks=_tasks(traces, run),
        transfer=_transfer(traces),
        update=_update(traces),
        schedule=last.schedule,
        stages=last.timeline.num_stages,
        groups=last.num_groups,
        micro_batches=micro_batches,
        traces=len(traces),
    )


def _pipeline(trace: ExecutionTrace) -> tuple[object, ...]:
    return trace.model, trace.schedule, trace.num_groups, trace.timeline.num_stages, trace.levels


def _tasks(traces: Sequence[ExecutionTrace], run: RunRecords) -> StageCosts:
    times = task_times(span for trace in traces for span in trace.spans)
    found = {key: median(each) for key, each in times.items()}
    stages = range(traces[0].timeline.num_stages)
    for stage in stages:
        if (stage, Pass.FORWARD) not in found:
            raise DataError(
                f"{run.path} has no measured tasks of stage {stage} of {len(stages)}. Give the "
                "directory with the records of all processes of the run."
            )
    return {kind: [cost_of_pass(found, stage, kind) for stage in stages] for kind in Pass}


def _transfer(traces: Sequence[ExecutionTrace]) -> float:
    transfers: list[float] = []
    for trace in traces:
        schedule = schedule_of(trace)
        transfers += waited_transfers(trace.spans[:SAMPLE], schedule, dependencies(schedule))
    return median(transfers) if transfers else 0.0


def _update(traces: Sequence[ExecutionTrace]) -> float:
    times: dict[str, list[float]] = defaultdict(list)
    for trace in traces:
        for each in trace.activities:
            if each.name == "update" and each.row.startswith("group "):
                times[each.row].append(each.end - each.start)
    return max(map(median, times.values()), default=0.0)
