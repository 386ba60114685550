"""The choice of what the stages of a pipeline run again, to keep every device within a budget.

choice    0      1      2      3   ...        each stage takes at most 0.75 of the one before
device 0  1500   1200   980    840            weights, values in flight, the running program
device 1  1100   960    810    700
budget    1000                 ^

The fullest device decides. In a run of several processes each knows the memory of its own devices,
and they exchange it for each choice, so that all choose the same.
"""

import bisect
from collections.abc import Callable

import jax
import keras

from millrace.base.records.memory_report import BudgetChoice
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.progress import search
from millrace.programs.plan import Plan, with_choice
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.budget import OverBudgetError, announce, attempt
from millrace.run.memory.stage_memory import pipeline_memory
from millrace.run.pipelines.programs.executables import StageExecutables
from millrace.run.pipelines.programs.stage_programs import StagePrograms
from millrace.run.processes.agreement import texts_of_all

CHOICES = 16  # the last leaves a stage a hundredth, the least it can take
COMPILE_SECONDS = 3600.0  # from the first process to the last: stages take different times


def chooser(
    model: keras.Model, stages: StageExecutables, log: CompileLog
) -> Callable[[Plan, State], Plan]:
    """Returns a function that chooses the plan with which all devices stay within the budget.

    Args:
        model: of the pipeline.
        stages: their programs are compiled for each attempt, and kept.
        log: gets the choice.

    Returns:
        The function. Over several processes, all call it at the same point.
    """
    is_local = all(group.is_local for group in stages.groups)

    def choose(plan: Plan, state: State) -> Plan:
        if plan.recompute is None or not plan.has_budget:
            return plan
        specs = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), state)
        peaks: dict[int, int] = {}
        compiled: dict[int, StagePrograms] = {}

        def measure(number: int) -> int:
            tick(attempt([*peaks.values()], "of at most 5"))
            compiled[number] = stages.programs(with_choice(plan, number), specs)
            devices = pipeline_memory(model, compiled[number])
            peak = max((device.peak for device in devices), default=0)
            peaks[number] = peak if is_local else _largest_of_all(peak)
            return peaks[number]

        budget = plan.recompute.budget or 0
        with (
            log.timed(),
            search(f"planning {model.name!r} for its recomputation budget") as tick,
            log.trying(plan, model.name) as trial,
        ):
            try:
                number = first_choice(budget, measure)
            except OverBudgetError as error:
                error.programs = compiled[min(peaks, key=peaks.__getitem__)]
                raise
            trial.chosen = with_choice(plan, number)
        kept = "everything is kept" if number == 0 else f"choice {number} of {CHOICES - 1}"
        text = f"on the fullest device, {kept}"
        announce(BudgetChoice(model.name, budget, peaks[number], None, text), log)
        return with_choice(plan, number)

    return choose


def _largest_of_all(nbytes: int) -> int:
    """Returns the largest of the numbers of all processes."""
    return max(map(int, texts_of_all(str(nbytes), COMPILE_SECONDS)))


def first_choice(budget: int | float, measure: Callable[[int], int]) -> int:
    """Returns the first choice that fits, by a binary search: values in flight are not predicted.

    Args:
        budget: bytes, or a share of what choice 0 takes.
        measure: compiles a choice, and returns the bytes of the fullest device.

    Raises:
        OverBudgetError: if no choice fits.
    """
    peaks = {0: measure(0)}
    limit = round(peaks[0] * budget) if isinstance(budget, float) else budget
    if peaks[0] <= limit:
        return 0

    def fits(number: int) -> bool:
        peaks[number] = measure(number)
        return peaks[number] <= limit

    number = bisect.bisect_left(range(CHOICES), True, lo=1, key=fits)
    if number == CHOICES:
        raise OverBudgetError(budget, limit, min(peaks.values()))
    return number
