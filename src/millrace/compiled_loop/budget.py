"""The cheapest choice of recomputation whose program stays within a memory budget.

    choices      0      1      2      3      4      5       fewest FLOPs ... least memory
    predicted    900    700    500    400    300    200     activations alone
    compiled     1100          690    590                   budget 600: 3

Predictions only guide the search; the peak that the compiler reports decides. The search ends with
a choice that fits and the one before it that does not, so that neither a larger budget nor another
first guess leads to a choice that costs more.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import rich.console

from millrace._compat.jax_executables import requirement
from millrace.compiling.executable import Executable, compiled_of
from millrace.compiling.log import CompileLog
from millrace.errors import PlanError
from millrace.plan import Plan, Recompute
from millrace.recomputation.costs import SegmentChain
from millrace.records.memory_report import BudgetChoice

logger = logging.getLogger("millrace")

_GUESSES = 4  # then the search bisects
_NEAR = 4  # last choices that are all tried before a budget is refused


def has_budget(plan: Plan) -> bool:
    """Whether a budget decides what the programs of a plan recompute."""
    return plan.recompute is not None and plan.recompute.budget is not None


def with_choice(plan: Plan, number: int) -> Plan:
    """Returns the plan with one choice in place of the budget; choice 0 recomputes nothing."""
    return replace(plan, recompute=Recompute(choice=number) if number else None)


def within_budget(
    plan: Plan,
    chain: SegmentChain | None,
    find: Callable[[Plan], Executable],
    model: str,
    log: CompileLog,
) -> tuple[Executable, float]:
    """Finds the program with the fewest FLOPs that stays within a plan's budget, and logs it.

    Args:
        plan: has a budget.
        chain: segments of its step; None if nothing in it can be recomputed.
        find: compiles the program of a plan that has a choice.
        model: name of the model.
        log: records the choice.

    Returns:
        The program, and the FLOPs that it adds to a step, as a share of the step's.

    Raises:
        PlanError: if even the choice of least memory exceeds the budget.
    """
    budget = plan.recompute.budget if plan.recompute is not None else None
    choices = chain.choices if chain is not None else ()
    compiled: dict[int, Executable] = {}

    def measure(number: int) -> int:
        compiled[number] = find(with_choice(plan, number))
        return requirement(compiled_of(compiled[number]))

    predicted = [choice.peak_bytes for choice in choices] or [0]
    limit, share = (None, budget) if isinstance(budget, float) else (budget, None)
    with log.trying(plan, model) as trial:
        number = find_choice(predicted, limit, share, measure)
        trial.chosen = with_choice(plan, number)
    peak = requirement(compiled_of(compiled[number]))
    extra = 0.0 if chain is None else chain.extra(number)
    text = "nothing is run again" if chain is None else chain.describe(number)
    announce(BudgetChoice(model, budget or 0, peak, extra, text), log)
    return compiled[number], extra


def announce(choice: BudgetChoice, log: CompileLog) -> None:
    """Records a choice, logs it, and prints it if stderr is a terminal."""
    log.add_budget(choice)
    logger.info("training %s", choice)
    console = rich.console.Console(stderr=True)
    if console.is_terminal:
        console.print(f"training {choice}", style="dim", highlight=False, markup=False)


def find_choice(
    predicted: Sequence[int], limit: int | None, share: float | None, measure: Callable[[int], int]
) -> int:
    """Returns the number of the first choice that fits.

    Args:
        predicted: bytes of activations of each choice, in falling order; the first recomputes
            nothing.
        limit: most bytes that a program may take; None if `share` is set.
        share: the limit as a share of the bytes that the first choice takes.
        measure: compiles a choice, and returns the bytes that its program takes.

    Raises:
        PlanError: if no choice fits.
    """
    peaks = {0: measure(0)}
    budget = round(peaks[0] * share) if share is not None else (limit or 0)
    low, high = 0, len(predicted)  # `low` does not fit; `high` does, or is past the last choice
    if peaks[0] <= budget:
        return 0
    while high - low > 1:
        number = min(_guess(predicted, peaks, budget), high - 1)
        if number <= low or len(peaks) > _GUESSES:
            number = (low + high) // 2
        peaks[number] = measure(number)
        if peaks[number] <= budget:
            high = number
        else:
            low = number
    if high < len(predicted):
        return high
    # The last choice is predicted to take the least memory. Once compiled, one near it may.
    for number in range(max(1, len(predicted) - _NEAR), len(predicted)):
        if number not in peaks:
            peaks[number] = measure(number)
    fitting = [number for number, peak in peaks.items() if peak <= budget]
    if fitting:
        return min(fitting)
    least = min(peaks.values())
    raise PlanError(
        f"budget={share if limit is None else limit} is {budget:,} bytes, and this training takes "
        f"at least {least:,}, however much is computed again. Set budget={least} or more, or use "
        "smaller batches."
    )


def _guess(predicted: Sequence[int], peaks: Mapping[int, int], budget: int) -> int:
    """Returns the first choice that should fit, from the errors of the predictions so far."""
    # The first one is the step uncut, of which compilers keep less than predicted.
    nearest = min(peaks, key=lambda k: (k == 0, abs(peaks[k] - budget)))
    left = budget - max(0, peaks[nearest] - predicted[nearest])
    return next((k for k, nbytes in enumerate(predicted) if nbytes <= left), len(predicted) - 1)
