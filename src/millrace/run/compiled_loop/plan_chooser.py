"""What is decided about a plan before its programs are looked for.

    the plan of a block    micro_batch="auto"     ->  the most rows that fit
                           a budget as a share    ->  its bytes, after the first plan
    the plan of a call     a budget               ->  the cheapest choice of recomputation that fits
                           no choice fits         ->  none: the blocks get shorter

Each of these is a plan again, which says everything about its programs.
"""

from collections.abc import Sequence
from dataclasses import replace

from millrace._compat.jax_executables import requirement
from millrace.compilation.executables.executable import Executable, compiled_of
from millrace.compilation.executables.progress import log_line, search
from millrace.programs.plan import BatchSpec, Plan, with_choice
from millrace.run.compiled_loop.budget import OverBudgetError, within_budget
from millrace.run.compiled_loop.executables import Executables, Moment
from millrace.run.compiled_loop.execution_calls import WITH_STEPS, Call, ProgramName
from millrace.run.compiled_loop.micro_batch import (
    candidates,
    is_undecided,
    limit_of,
    most_that_fit,
)


class PlanChooser:
    """Makes the decisions of one mode of one model, by compiling programs for their memory."""

    def __init__(
        self,
        executables: Executables,
        blocks_ahead: int = 0,
        memory: int | None = None,
        may_shorten: bool = True,
    ):
        """Begins without decisions.

        Args:
            executables: of the model.
            blocks_ahead: blocks that wait on the device while a program runs.
            memory: bytes of a device that training may take; None for all that it has.
            may_shorten: whether blocks may get shorter: the user has not chosen their length.
        """
        self.executables = executables
        self._blocks_ahead, self._memory = blocks_ahead, memory
        self._may_shorten = may_shorten
        self.shortened: dict[BatchSpec, int] = {}  # steps of their blocks
        # The first plan that has one, as the user gave it, and its bytes.
        self._budget: tuple[Plan, int] | None = None
        self._of_blocks: dict[tuple[Plan, Moment], Plan] = {}
        self._of_calls: dict[tuple[Plan, ProgramName, int | None, Moment], Plan] = {}

    def of_block(self, plan: Plan, single_steps: bool) -> Plan:
        """Returns the plan with rows and bytes in place of "auto" and shares. May compile programs.

        Args:
            plan: of a block.
            single_steps: whether executions have one step.
        """
        if is_undecided(plan):
            key = plan, self.executables.now()
            if key not in self._of_blocks:
                self._of_blocks[key] = self._with_rows(plan, single_steps)
            plan = self._of_blocks[key]
        # A share is of the memory of the first program: that of a smaller last batch, or of shorter
        # blocks, has weights of the same size.
        if self._budget is None or plan.recompute is None or plan == self._budget[0]:
            return plan
        return replace(plan, recompute=replace(plan.recompute, budget=self._budget[1]))

    def _with_rows(self, plan: Plan, single_steps: bool) -> Plan:
        executables, model = self.executables, self.executables.model.name
        plans = candidates(plan)
        exported = next((each for each in plans if executables.loaded_form(each)), None)
        limit = limit_of(plan, self._blocks_ahead, self._memory)
        if exported is not None or limit is None or plan.batch.treedef is None:
            return exported or plans[0]

        def measure(each: Plan) -> int:
            each = with_choice(each, 0) if each.has_budget else each
            form, rounds = executables.form(each), plan.update_steps // plan.replicas
            call = Call("run", unroll=rounds)
            if form.is_loop:
                call = Call("run", unroll=1 if single_steps and rounds == 1 else None)
            elif rounds > (form.unroll or 1):
                call = Call("accumulate", unroll=form.unroll)
            return requirement(compiled_of(executables.of_call(each, call)))

        if self._may_shorten and plan.capacity > plan.update_steps:  # before rows are divided
            with executables.log.trying(plans[0], model):
                peak = measure(plans[0])
            if peak > limit:
                self._shorten(plan, plan.update_steps)
                return plans[0]
        return most_that_fit(plans, limit, measure, model, executables.log)

    def of_calls(self, plan: Plan, calls: Sequence[Call]) -> Sequence[Plan] | None:
        """Returns the plans of a block's calls; None where its blocks get shorter for a budget.

        Raises:
            OverBudgetError: if they cannot be shorter, or the user chose their length.
        """
        if not plan.has_budget:
            return (plan,) * len(calls)
        try:
            return [self.of_call(plan, call) for call in calls]
        except OverBudgetError as error:
            shorter = [n for n in (plan.update_steps, plan.replicas) if n < plan.capacity]
            self._budget = first, nbytes = self._budget or (plan, error.nbytes)
            if not self._may_shorten or not shorter:
                given = None if first.recompute is None else first.recompute.budget
                refusal = OverBudgetError(given, nbytes, error.least)
                refusal.programs = error.programs
                raise refusal from None
            self._shorten(plan, shorter[0])
            return None

    def of_call(self, plan: Plan, call: Call) -> Plan:
        """Returns the plan of a block with a choice in place of its budget, for one call.

        Raises:
            OverBudgetError: if no choice stays within the budget.
        """
        if not plan.has_budget:
            return plan
        key = plan, call.program, call.unroll, self.executables.now()
        if key not in self._of_calls:
            has_steps = call.program in WITH_STEPS
            chosen = self._within_budget(plan, call) if has_steps else with_choice(plan, 0)
            self._of_calls[key] = chosen
        return self._of_calls[key]

    def find(self, plan: Plan, call: Call) -> Executable:
        """Returns the program of a call with a block's plan."""
        return self.executables.of_call(self.of_call(plan, call), call)

    def _within_budget(self, plan: Plan, call: Call) -> Plan:
        executables = self.executables
        title = f"planning {executables.model.name!r} for its recomputation budget"
        try:
            with executables.log.timed(), search(title) as tick:
                chosen = within_budget(plan, call, executables, tick)
        finally:
            executables.forget_trials()
        self._budget = self._budget or (plan, chosen.nbytes)
        return chosen.plan

    def _shorten(self, plan: Plan, steps: int) -> None:
        self.shortened[plan.batch] = steps
        log_line(
            f"training {self.executables.model.name!r} takes {steps} of its batches to the device "
            f"at a time: {plan.capacity} take too much memory"
        )
