"""Compiles what the executions of a model in one piece would run, and runs nothing.

It reads the same plan of calls and asks for the same executables as the runner does, so what is
compiled here is there when training begins.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from millrace.compiled_loop.block_plans import BlockPlans
from millrace.compiled_loop.calls import Call, CallPlan, ProgramName
from millrace.compiled_loop.executables import Executables
from millrace.compiled_loop.protocol import ExecutionSteps
from millrace.compiling.executable import Executable
from millrace.plan import Plan
from millrace.replicas.placement import specs_of_programs


class CompiledCall(NamedTuple):
    """A call that an execution would make, with its executable."""

    program: ProgramName
    executable: Executable
    steps: int  # that the executable runs; 0 where that is none
    is_loop: bool  # whether XLA sees one iteration of a loop, however many there are


class LoopPrograms(NamedTuple):
    """What an execution of a model in one piece runs."""

    plan: Plan  # of the last block
    calls: tuple[CompiledCall, ...]  # each executable once
    apply: Callable[[], Executable]  # the program of an update alone
    extra_flops: float | None  # the share that a budget has added to a step; None without one


class LoopDryRun:
    """The dry run of a model in one piece."""

    def __init__(self, executables: Executables, plan: Plan, single_steps: bool):
        """Begins as a new runner does.

        Args:
            executables: of the runner, which will have what is compiled.
            plan: of the mode, for any block.
            single_steps: whether executions have one step.
        """
        self._executables = executables
        self._blocks = BlockPlans(executables, plan)
        self._single_steps = single_steps

    def programs(self, state: Any, execution: ExecutionSteps) -> LoopPrograms:
        """Returns what an execution runs, compiled.

        Args:
            state: specs of the state, as Keras has it.
            execution: whose blocks need no batches.
        """
        found: dict[int, CompiledCall] = {}
        blocks = self._blocks
        try:
            self._executables.see(specs_of_programs(blocks.base, state))
            blocks.make_room(execution.longest)
            calls = CallPlan(blocks.base, execution.longest, execution.chunk, self._single_steps)
            for block_slice in execution.slices:
                blocks.enter(block_slice.block)
                for call in calls.of_slice(block_slice.start, block_slice.count, blocks.forms):
                    self._compile(call, found)
            for call in calls.rest():
                self._compile(call, found)
        finally:
            self._executables.forget()
        plan = blocks.of_block
        return LoopPrograms(
            plan,
            tuple(found.values()),
            lambda: self._executables.apply(plan),
            self._executables.extra_flops(plan),
        )

    def compile(self, state: Any, execution: ExecutionSteps) -> None:
        """Compiles what an execution runs, for its runner to have it."""
        self.programs(state, execution)

    def _compile(self, call: Call, found: dict[int, CompiledCall]) -> None:
        executable = self._executables.of_call(self._blocks.of_block, call)
        is_loop = self._blocks.forms.form.is_loop
        found[id(executable)] = CompiledCall(call.program, executable, call.steps, is_loop)
