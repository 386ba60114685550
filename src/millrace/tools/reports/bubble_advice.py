"""Advice about the bubble of a pipeline, found by simulation with measured costs.

another schedule            if stages never overlap
more micro-batches          if these would take a third of the bubble away
another cut of the model    if the longest stage is what the others wait for
"""

from collections.abc import Mapping, Sequence
from statistics import median

from millrace.base.records.run import RunRecords
from millrace.base.records.trace import ExecutionTrace
from millrace.errors import MillraceError
from millrace.run.schedules.costs import PassOfStage, cost_of_pass, task_times
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.table import SCHEDULES, make_schedule
from millrace.run.schedules.task import Pass
from millrace.tools.reports.loop_parts import LoopParts, lost_text, traces_of

_STEPS = "gradient_accumulation_steps_per_replica"
_MAX_FACTOR = 8  # more micro-batches than eight times as many change another thing: the training
_SMALL = 0.1  # a bubble to stop at
_GAIN = 2 / 3  # of the bubble that may be left, for a change to be worth advising


def bubble_advice(run: RunRecords, parts: Sequence[LoopParts]) -> str:
    """Returns a sentence about the loop that lost the most to its bubble."""
    begin = f"Device groups waited for one another for {lost_text(parts, 'bubble')}"
    worst = max(parts, key=lambda each: each.seconds["bubble"])
    trace = _trace(run, worst)
    change = _change(trace, worst.update.steps) if trace and worst.update else ""
    return f"{begin}: {change or f'set {_STEPS} in model.set_pipelining_options() to more.'}"


def _trace(run: RunRecords, part: LoopParts) -> ExecutionTrace | None:
    traces = [each for each in traces_of(run, part.loop, part.loop.mode) if each.spans]
    traces.sort(key=lambda each: each.timeline.end)
    return traces[len(traces) // 2] if traces else None


def _change(trace: ExecutionTrace, micro_batches: int) -> str:
    costs = {key: median(times) for key, times in task_times(trace.spans).items()}
    now = micro_batches
    name, stages = trace.schedule, trace.timeline.num_stages
    before = _simulated(trace, name, now, costs)
    if name == "sequential" and stages > 1 and trace.num_groups > 1:
        other = _simulated(trace, "1f1b", now, costs)
        if before and other is not None and other < _GAIN * before:
            return (
                f'with model.set_pipelining_options(pipeline_schedule="1f1b") stages overlap, and '
                f"the same tasks leave a bubble of {other:.0%} instead of {before:.0%}."
            )
    if before:
        more, after = now, before
        while more < _MAX_FACTOR * now and after > _SMALL:
            more *= 2
            after = _simulated(trace, name, more, costs) or 0.0
        if after <= _GAIN * before:
            return (
                f"set model.set_pipelining_options({_STEPS}={more}) instead of {now}, and the same "
                f"tasks leave a bubble of {after:.0%} instead of {before:.0%}."
            )
    work = [sum(costs.get((stage, kind), 0.0) for kind in Pass) for stage in range(stages)]
    longest = max(range(stages), key=lambda stage: work[stage])
    if stages > 1 and work[longest] > 1.25 * sum(work) / stages:
        return (
            f"stage {longest} takes {1e3 * work[longest]:.3g} ms for a micro-batch where the mean "
            f"of all {stages} is {1e3 * sum(work) / stages:.3g} ms, so move layers out of it with "
            "model.set_pipeline_stage_assignment(...)."
        )
    return ""


def _simulated(
    trace: ExecutionTrace,
    schedule: str,
    micro_batches: int,
    costs: Mapping[PassOfStage, float],
) -> float | None:
    """Returns the bubble of a schedule for tasks of these costs; None if it cannot be made."""
    if schedule not in SCHEDULES:
        return None
    stage_groups = {span.stage: span.group for span in trace.spans}
    groups = tuple(stage_groups.get(stage, stage) for stage in range(trace.timeline.num_stages))
    try:
        rows = make_schedule(schedule, len(groups), micro_batches, groups)
        return simulate(rows, lambda task: cost_of_pass(costs, task.stage, task.kind)).bubble
    except MillraceError:
        return None
