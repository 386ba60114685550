"""The plan of each block in a run, and the forms of its programs."""

from dataclasses import replace

from millrace.compiled_loop.calls import Forms
from millrace.compiled_loop.executables import Executables
from millrace.feeds.block import Block
from millrace.plan import LoopForm, Plan


class BlockPlans:
    """The plans of the blocks that a runner goes through, which differ in batch and capacity."""

    def __init__(self, executables: Executables, plan: Plan):
        """Begins without a block.

        Args:
            executables: of the model; they trace a step to find the form of its programs.
            plan: of the mode; batch and capacity are replaced by those of each block.
        """
        self._executables = executables
        self.base = plan
        self.of_block = plan
        self.forms = Forms(LoopForm(unroll=None), None, update_fits_one_call=True)
        self._longest = 1
        self._has_block = False

    def extend_records(self, longest: int) -> bool:
        """Makes sure that a call can return the results of `longest` steps, if plans want them.

        Returns:
            Whether this made the plan of the present block out of date.
        """
        self._longest = longest
        plan = self.base
        if not (plan.each_step or plan.tapped) or longest <= plan.records:
            return False
        records = -(-longest // plan.replicas) * plan.replicas
        self.base = replace(plan, records=records)
        return True

    def enter(self, block: Block) -> None:
        """Sets `of_block` and `forms` for `block`. Its first plan may take a trace."""
        plan = self._plan_of(block)
        if not plan.tapped and self._executables.taps_values(plan):
            # Only a trace shows that a layer enqueues, so the first plan was traced without taps.
            self.base = replace(self.base, tapped=True)
            self.extend_records(self._longest)
            plan = self._plan_of(block)
        if self._has_block and plan == self.of_block:
            return  # keeps the plan object: executables are looked up by its identity
        self.of_block, self._has_block = plan, True
        form = self._executables.form(plan)
        # Unrolled code contains whole updates; an update that is longer runs in several calls.
        rounds = plan.update_steps // plan.replicas
        fits = form.is_loop or rounds <= (form.unroll or 1)
        self.forms = Forms(form, self._executables.max_tapped_steps(plan), fits)

    def _plan_of(self, block: Block) -> Plan:
        return replace(self.base, batch=block.spec, capacity=block.capacity)
