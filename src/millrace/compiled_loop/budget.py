"""The cheapest choice of recomputation whose program stays within a budget.

    choices      0      1      2      3      4      5       fewest FLOPs ... least memory
    predicted    900    700    500    400    300    200     plus what is not activations
    compiled     1100          690    590                   budget 600: 3

A prediction says where to look; what counts is the peak that the compiler reports. It is bracketed
by a choice that fits and the one before it that does not, so that neither a larger budget nor
another first guess leads to a choice that costs more.
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

_GUESSES = 4  # then the choices are halved
_NEAR = 4  # choices that are tried before a budget is refused


def has_budget(plan: Plan) -> bool:
    """Whether millrace is to choose what a plan's programs run again."""
    return plan.recompute is not None and plan.recompute.budget is not None


def with_choice(plan: Plan, number: int) -> Plan:
    """Returns a plan of one choice; 0 keeps everything."""
    return replace(plan, recompute=Recompute(choice=number) if number else None)


def within_budget(
    plan: Plan,
    chain: SegmentChain | None,
    find: Callable[[Plan], Executable],
    model: str,
    log: CompileLog,
) -> tuple[Executable, float]:
    """Finds the program that stays within a plan's budget in the fewest FLOPs, and says which.

    Args:
        plan: with a budget.
        chain: its step; None if nothing in it can be run again.
        find: compiles the program of a plan that has a choice.
        model: its name.
        log: gets the choice.

    Returns:
        The program, and the share of the FLOPs of a step that it adds to them.

    Raises:
        PlanError: if not even the choice of least memory stays within it.
    """
    budget = plan.recompute.budget if plan.recompute is not None else None
    choices = chain.choices if chain is not None else ()
    found: dict[int, Executable] = {}

    def measure(number: int) -> int:
        found[number] = find(with_choice(plan, number))
        return requirement(compiled_of(found[number]))

    predicted = [choice.peak_bytes for choice in choices] or [0]
    limit, share = (None, budget) if isinstance(budget, float) else (budget, None)
    number = find_choice(predicted, limit, share, measure)
    peak = requirement(compiled_of(found[number]))
    extra = 0.0 if chain is None else chain.extra(number)
    text = "nothing is run again" if chain is None else chain.describe(number)
    announce(BudgetChoice(model, budget or 0, peak, extra, text), log)
    return found[number], extra


def announce(choice: BudgetChoice, log: CompileLog) -> None:
    """Keeps what was chosen, and says it: to the log, and where someone is waiting."""
    log.budgets.append(choice)
    logger.info("training %s", choice)
    console = rich.console.Console(stderr=True)
    if console.is_terminal:
        console.print(f"training {choice}", style="dim", highlight=False, markup=False)


def find_choice(
    predicted: Sequence[int], limit: int | None, share: float | None, measure: Callable[[int], int]
) -> int:
    """Returns the number of the first choice that fits.

    Args:
        predicted: bytes of activations of each choice, falling; the first keeps everything.
        limit: bytes that a program may take; None where `share` is given.
        share: of what the first takes.
        measure: compiles a choice, and returns the bytes that its program takes.

    Raises:
        PlanError: if not even the last choice fits.
    """
    peaks = {0: measure(0)}
    budget = round(peaks[0] * share) if share is not None else (limit or 0)
    low, high = 0, len(predicted)  # `low` does not fit, `high` does, or is none of them
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
    # The last choice is the one of least memory as predicted. One near it may be so compiled.
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
    """Returns the first choice that should fit, by what those that were compiled are off by."""
    # The first one is the step uncut, of which compilers keep less than is predicted.
    nearest = min(peaks, key=lambda k: (k == 0, abs(peaks[k] - budget)))
    room = budget - max(0, peaks[nearest] - predicted[nearest])
    return next((k for k, nbytes in enumerate(predicted) if nbytes <= room), len(predicted) - 1)
