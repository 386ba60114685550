"""The plan of each block that is run, and the forms of its programs."""

from dataclasses import replace

from millrace.compiled_loop.calls import Forms
from millrace.compiled_loop.executables import Executables
from millrace.feeds.block import Block
from millrace.plan import LoopForm, Plan


class BlockPlans:
    """Follows a runner from block to block: each has a batch and a capacity of its own."""

    def __init__(self, executables: Executables, plan: Plan):
        """Begins without a block.

        Args:
            executables: of the model, which know how their programs are made.
            plan: of the mode, for any block.
        """
        self._executables = executables
        self.base = plan
        self.of_block = plan
        self.forms = Forms(LoopForm(unroll=None), None, update_fits_one_call=True)
        self._longest = 1
        self._has_block = False

    def make_room(self, longest: int) -> bool:
        """Lets calls return the results of so many steps, where those are wanted.

        Returns:
            Whether the plan of the present block is out of date now.
        """
        self._longest = longest
        plan = self.base
        if not (plan.each_step or plan.tapped) or longest <= plan.records:
            return False
        records = -(-longest // plan.replicas) * plan.replicas
        self.base = replace(plan, records=records)
        return True

    def enter(self, block: Block) -> None:
        """Makes `block` the one whose plan `of_block` is. Its first plan may take a trace."""
        plan = self._plan_of(block)
        if not plan.tapped and self._executables.taps_found(plan):
            # Only a trace shows that a layer enqueues. The first plan's trace was for that.
            self.base = replace(self.base, tapped=True)
            self.make_room(self._longest)
            plan = self._plan_of(block)
        if self._has_block and plan == self.of_block:
            return  # with the same object, by which executables are found
        self.of_block, self._has_block = plan, True
        form = self._executables.form(plan)
        # Where code must be unrolled, so must a whole update be, or be run in parts.
        rounds = plan.update_steps // plan.replicas
        fits = form.is_loop or rounds <= (form.unroll or 1)
        self.forms = Forms(form, self._executables.tap_room(plan), fits)

    def _plan_of(self, block: Block) -> Plan:
        return replace(self.base, batch=block.spec, capacity=block.capacity)
