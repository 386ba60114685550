"""The cheapest choice of recomputation whose program stays within a memory budget.

    choices      0      1      2      3      4      5       fewest FLOPs ... least memory
    predicted    900    700    500    400    300    200     and 200 of weights, batches and results
    compiled     1100                 610    500            budget 600: 3 is tried, then 4

The peak that the compiler reports decides, but predictions are near it. So the first choice that is
predicted to fit is compiled, and the ones after it until one does. Choice 0 is compiled where it
may fit, or where the budget is a share of it. A larger budget never begins further down, so it
never leads to a choice that costs more.

The first prediction holds in four of five cases, so that this choice is compiled to run. Of further
attempts only the memory matters: they are compiled in less time, and the one that is chosen once
more, to run.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from millrace._compat.jax_executables import requirement, sizes_of
from millrace.base.records.memory import bytes_text
from millrace.base.records.memory_report import BudgetChoice
from millrace.compilation.executables.executable import Executable, compiled_of
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.progress import log_line
from millrace.errors import PlanError
from millrace.programs.plan import Plan, with_choice
from millrace.run.compiled_loop.executables import CompiledCall, Executables, LoopPrograms
from millrace.run.compiled_loop.execution_calls import Call

# Last choices that are all tried before a budget is refused. Down to half the memory predictions
# are within 12 % for most plans, and near the least up to two times too low, so that the last need
# not be the least. Each costs a compilation where the user is told no: three is a choice.
_NEAR = 3
# Of a budget: a choice that takes less is compared with a cheaper one. The limits of choices are
# 7 % apart or more (`choices.RATIO`), so that where less than a tenth is left, the next cheaper one
# seldom fits. Of 114 budgets of 23 families, 60 ended above this line.
_NEARLY = 0.9


class OverBudgetError(PlanError):
    """No choice stays within a budget.

    Attributes:
        budget: as the user gave it.
        nbytes: of the budget.
        least: bytes of the program that took the least, of all that were compiled.
        programs: that program, as `LoopPrograms`, or the `StagePrograms` of a pipeline; None once
            the message describes its memory.
    """

    programs: Any = None

    def __init__(self, budget: object, nbytes: int, least: int, details: str = "") -> None:
        """Says so, and what to set instead.

        Args:
            budget: as the user gave it.
            nbytes: of the budget.
            least: bytes of the smallest program.
            details: sentences about that program and about other changes, in place of the advice
                to use smaller batches.
        """
        super().__init__(
            f"budget={budget} is {nbytes:,} bytes. Of all programs that were compiled for it, the "
            f"smallest takes {least:,}. {details or f'{advice(least)}, or use smaller batches.'}"
        )
        self.budget, self.nbytes, self.least = budget, nbytes, least


def advice(least: int) -> str:
    """Returns the budget to set, without a full stop."""
    return f"Set budget={least} or more"


class ChosenPlan(NamedTuple):
    """A plan with a choice that stays within its budget."""

    plan: Plan
    nbytes: int  # of the budget


def within_budget(
    plan: Plan, call: Call, executables: Executables, tick: Callable[[str], object]
) -> ChosenPlan:
    """Chooses the program with the fewest FLOPs that stays within a plan's budget, and logs it.

    Args:
        plan: has a budget.
        call: of the program, which has steps.
        executables: of the model.
        tick: called with each attempt before it is compiled.

    Returns:
        The plan; its program has been compiled.

    Raises:
        OverBudgetError: if even the choice of least memory exceeds the budget.
    """
    choices, log, model = executables.choices(plan), executables.log, executables.model.name
    budget = (plan.recompute.budget if plan.recompute is not None else None) or 0
    given = choices.choices if choices is not None else ()
    predicted = [choice.peak_bytes for choice in given] or [0]
    compiled: dict[int, Executable] = {}
    attempts: list[int] = []  # bytes of each

    def measure(number: int, is_trial: bool) -> int:
        tick(attempt(attempts, "usually of 2 to 5"))
        compiled[number] = executables.of_call(with_choice(plan, number, is_trial), call)
        attempts.append(requirement(compiled_of(compiled[number])))
        return attempts[-1]

    with log.trying(plan, model) as trial:
        search = Search(predicted, budget, measure)
        try:
            number = search.run(
                executables.state_bytes + plan.capacity * plan.batch.nbytes,
                lambda number: sizes_of(compiled_of(compiled[number])).temporary_bytes,
            )
        except OverBudgetError as error:
            least = compiled[min(search.peaks, key=search.peaks.__getitem__)]
            only = CompiledCall(call.program, least, 1, is_loop=True)
            error.programs = LoopPrograms(plan, (only,), lambda: least)
            raise
        chosen = trial.chosen = with_choice(plan, number)
    peak = requirement(compiled_of(compiled[number]))
    extra = 0.0 if choices is None else choices.extra(number)
    text = "nothing is run again" if choices is None else choices.describe(number)
    announce(BudgetChoice(model, budget, peak, extra, text), log)
    return ChosenPlan(chosen, search.limit)


def attempt(peaks: Sequence[int], details: str) -> str:
    """Returns what a search does next that has compiled programs with these peaks."""
    before = f"; the last one takes {bytes_text(peaks[-1])}" if peaks else ""
    return f"compiling attempt {len(peaks) + 1} ({details}){before}"


def announce(choice: BudgetChoice, log: CompileLog) -> None:
    """Records a choice, logs it, and prints it if stderr is a terminal."""
    log.add_budget(choice)
    log_line(f"training {choice}")


class Search:
    """A search for the first choice that fits.

    Attributes:
        peaks: bytes of each choice that was compiled.
        limit: bytes of the budget, once they are known.
    """

    def __init__(
        self,
        predicted: Sequence[int],
        budget: int | float,
        measure: Callable[[int, bool], int],
    ) -> None:
        """Prepares a search.

        Args:
            predicted: bytes that each choice computes and keeps, in falling order; the first
                recomputes nothing.
            budget: most bytes that a program may take, or a share of what the first choice takes.
            measure: compiles a choice, for its memory only or to run, and returns the bytes that
                its program takes.
        """
        self._predicted, self._budget, self._measure = predicted, budget, measure
        self.peaks: dict[int, int] = {}
        self.limit = 0
        self._ready: set[int] = set()  # choices that were compiled to run

    def run(self, arguments: int, temporary: Callable[[int], int]) -> int:
        """Returns the number of the choice, which has been compiled to run.

        Args:
            arguments: estimated bytes of the arguments, until a choice has been compiled.
            temporary: returns the temporary bytes of a choice that has been compiled.

        Raises:
            OverBudgetError: if no choice fits.
        """
        last, budget = len(self._predicted) - 1, self._budget
        limit = self.limit = 0 if isinstance(budget, float) else budget
        fixed = arguments
        # Where a budget in bytes is below what choice 0 computes, choice 0 cannot fit, and is not
        # compiled. A share needs its compiled peak to become bytes.
        may_fit = budget == 1.0 if isinstance(budget, float) else budget > self._predicted[0]
        if isinstance(budget, float) or may_fit or last == 0:
            runs_plain = may_fit or last == 0
            self._try(0, is_trial=not runs_plain)
            limit = round(self.peaks[0] * budget) if isinstance(budget, float) else limit
            self.limit = limit
            if self.peaks[0] <= limit:
                return 0 if runs_plain else self._to_run(0, limit)
            fixed = self.peaks[0] - temporary(0)
        first = number = self._first_below(1, limit - fixed)
        # The first is compiled to run, since it mostly does; a wrong guess costs half a compilation
        # more than a trial would have, which makes no fast machine code and takes half the time.
        while number <= last and self._try(number, is_trial=number != first) > limit:
            fixed = self.peaks[number] - temporary(number)
            # Where predictions are too low by some factor, the next ones are by the same.
            scale = (self.peaks[number] - fixed) / max(1, self._predicted[number])
            number = max(
                number + 1, self._first_below(number, int((limit - fixed) / max(scale, 1e-9)))
            )
        if number <= last:
            fixed = self.peaks[number] - temporary(number)
            number = self._to_run(self._cheaper(number, fixed, limit), limit)
        # The last choice is predicted to take the least. Once compiled, one before it may.
        for near in range(max(1, last - _NEAR), last + 1):
            if number > last and (self.peaks.get(near) or self._try(near)) <= limit:
                number = self._to_run(near, limit)
        if number > last:
            raise OverBudgetError(budget, limit, min(self.peaks.values()))
        return number

    def _try(self, number: int, is_trial: bool = True) -> int:
        self.peaks[number] = self._measure(number, is_trial)
        if not is_trial:
            self._ready.add(number)
        return self.peaks[number]

    def _first_below(self, begin: int, most: int) -> int:
        """Returns the first choice from `begin` on that is predicted to take at most `most`."""
        after = range(begin, len(self._predicted))
        return next((k for k in after if self._predicted[k] <= most), len(self._predicted) - 1)

    def _cheaper(self, number: int, fixed: int, limit: int) -> int:
        """Returns a choice before `number` that fits, where predictions were too high."""
        if self.peaks[number] > _NEARLY * limit:
            return number
        scale = (self.peaks[number] - fixed) / max(1, self._predicted[number])
        earlier = self._first_below(1, int((limit - fixed) / max(scale, 1e-9)))
        # Two, the one that should fit by the corrected prediction and the next: what can be won is
        # a few FLOPs, and a user waits for it.
        near = range(earlier, min(earlier + 2, number))
        tried = (each for each in near if each not in self.peaks)
        return next((each for each in tried if self._try(each) <= limit), number)

    def _to_run(self, number: int, limit: int) -> int:
        """Compiles a choice to run, or those after it until one fits; past the last if none does.

        Rarely, it takes more than when it was compiled for its memory only.
        """
        while number < len(self._predicted):
            if number not in self._ready:
                self._try(number, is_trial=False)
            if self.peaks[number] <= limit:
                break
            number += 1
        return number
