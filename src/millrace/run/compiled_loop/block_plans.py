"""The plan of each block in a run, and the forms of its programs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from millrace.compilation.executables.executable import Executable
from millrace.programs.feeds.block import Block, BlockSlice, part_of_block
from millrace.programs.plan import LoopForm, Plan, with_micro_batch
from millrace.run.compiled_loop.executables import Moment
from millrace.run.compiled_loop.execution_calls import (
    APPLY,
    STEP,
    Call,
    CallRules,
    Forms,
    slice_calls,
)
from millrace.run.compiled_loop.micro_batch import is_undecided
from millrace.run.compiled_loop.plan_chooser import PlanChooser


class BlockPart(NamedTuple):
    """A part of a block that is too long for a budget."""

    key: tuple[int, int, int]  # identity of the whole, first step, steps
    whole: Block
    block: Block


class PlannedCall(NamedTuple):
    """A call of an execution."""

    call: Call
    executable: Executable
    start: int  # first step, in the block that was entered


class BlockPlans:
    """The plans of the blocks that a runner goes through, which differ in batch and capacity."""

    def __init__(self, chooser: PlanChooser, plan: Plan, single_steps: bool):
        """Begins without a block.

        Args:
            chooser: of the model; its executables trace a step to find the form of its programs.
            plan: of the mode; batch and capacity are replaced by those of each block.
            single_steps: whether executions have one step.
        """
        self._chooser, self._executables = chooser, chooser.executables
        self._single_steps = single_steps
        is_single = single_steps and plan.update_steps == 1
        # On CPU, where blocks are arrays of the host, a single step gets its batch, not the block.
        self.steps_apart = is_single and plan.group.platform == "cpu"
        # Without a choice to make, it always has the same call.
        self.has_one_call = is_single and not (plan.has_budget or is_undecided(plan))
        self.base = plan
        self.of_block = plan
        self.forms = Forms(LoopForm(unroll=None), None, update_fits_one_call=True)
        self._longest = 1
        self._has_block = False
        self._entered: tuple[Any, ...] | None = None  # what decided the plan of the present block
        self._part: BlockPart | None = None
        self._step: tuple[Moment, Executable] | None = None  # of the block that was entered

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

    def calls(
        self, slices: Iterable[BlockSlice], rules: CallRules, enter: Callable[[Block], object]
    ) -> Iterator[PlannedCall]:
        """Yields the calls of an execution.

        Args:
            slices: of the execution. Blocks that do not keep to a budget are entered in parts.
            rules: of the execution.
            enter: called with each block, or part of one, before its calls.
        """
        begun = None
        for block_slice in slices:
            start, end = block_slice.start, block_slice.start + block_slice.count
            while start < end:
                block, offset = self._part_with(block_slice.block, start)
                enter(block)
                if self._chooser.shortened.get(block.spec, block.capacity) < block.capacity:
                    continue  # in shorter parts: memory was counted for the first time
                steps = min(end, offset + block.capacity) - start
                first = (start - offset) % rules.replicas
                calls, after = slice_calls(rules, self.forms, begun, first, steps)
                plans = self._chooser.of_calls(self.of_block, calls)
                if plans is None:
                    continue
                for call, plan in zip(calls, plans, strict=True):
                    executable = self._executables.of_call(plan, call)
                    yield PlannedCall(call, executable, start - offset + call.start)
                begun, start = after, start + steps
        if begun is not None:  # the data ended within an update, which has fewer steps
            yield PlannedCall(APPLY, self._chooser.find(self.of_block, APPLY), 0)

    def one_call(self, start: int) -> PlannedCall:
        """Returns the call of a step of the block that was entered, where it is always the same."""
        now = self._executables.now()
        if self._step is None or self._step[0] != now:
            self._step = now, self._executables.of_call(self.of_block, STEP)
        return PlannedCall(STEP, self._step[1], start)

    def again(self, block: Block) -> Executable | None:
        """Returns the program of a step if it is that of the step before; None if it may not be."""
        if self._step is None or self._entered is None or self.of_block.tapped:
            return None
        base, spec, capacity, *_ = self._entered
        is_same = base is self.base and spec is block.spec and capacity == block.capacity
        now, executable = self._step
        return executable if is_same and now == self._executables.now() else None

    def _part_with(self, block: Block, start: int) -> tuple[Block, int]:
        """Returns the part of a block that has a step, and the part's first step."""
        steps = self._chooser.shortened.get(block.spec, block.capacity)
        if steps >= block.capacity:
            return block, 0
        offset = min(start - start % steps, block.capacity - steps)
        key = (id(block), offset, steps)
        if self._part is None or self._part.key != key:
            self._part = BlockPart(key, block, part_of_block(block, offset, steps))
        return self._part.block, offset

    def release(self) -> None:
        """Forgets the blocks of a loop that has ended."""
        self._part = None

    def enter(self, block: Block) -> None:
        """Sets `of_block` and `forms` for `block`. Its first plan may take a trace."""
        shape = (block.spec, block.capacity, block.spec in self._chooser.shortened)
        entered = (self.base, *shape, self._executables.now())
        if entered == self._entered:
            self._entered = entered  # `again` compares by identity
            return
        plan = self._plan_of(block)
        if not plan.tapped and self._executables.taps_values(_undivided(plan)):
            # Only a trace shows that a layer enqueues, so the first plan was traced without taps.
            self.base = replace(self.base, tapped=True)
            self.extend_records(self._longest)
            plan = self._plan_of(block)
        plan = self._chooser.of_block(plan, self._single_steps)
        self._entered = (self.base, *shape, self._executables.now())
        if self._has_block and plan == self.of_block:
            return  # keeps the plan object: executables are looked up by its identity
        self.of_block, self._has_block, self._step = plan, True, None
        form = self._executables.form(plan)
        # Unrolled code contains whole updates; an update that is longer runs in several calls.
        rounds = plan.update_steps // plan.replicas
        fits = form.is_loop or rounds <= (form.unroll or 1)
        self.forms = Forms(form, self._executables.max_tapped_steps(plan), fits)

    def _plan_of(self, block: Block) -> Plan:
        is_shortened = block.spec in self._chooser.shortened
        capacity = 1 if self.steps_apart else block.capacity
        return replace(self.base, batch=block.spec, capacity=capacity, is_shortened=is_shortened)


def _undivided(plan: Plan) -> Plan:
    """Returns the plan of whole batches where micro-batches are still to be chosen."""
    return with_micro_batch(plan, "whole") if is_undecided(plan) else plan
