"""Compiles the programs of executions of a model in one piece, without running them.

It reads the same plan of calls and asks for the same executables as the runner does, so training
finds the executables that were compiled here.
"""

from millrace.programs.plan import Plan
from millrace.programs.replicas.placement import specs_of_programs
from millrace.programs.steps.state import State
from millrace.run.compiled_loop.block_plans import BlockPlans
from millrace.run.compiled_loop.executables import CompiledCall, LoopPrograms
from millrace.run.compiled_loop.execution_calls import APPLY, CallRules
from millrace.run.compiled_loop.plan_chooser import PlanChooser
from millrace.run.compiled_loop.protocol import ExecutionSteps


class LoopDryRun:
    """The dry run of a model in one piece."""

    def __init__(self, chooser: PlanChooser, plan: Plan, single_steps: bool):
        """Begins as a new runner does.

        Args:
            chooser: of the runner, which shares all that is compiled.
            plan: of the mode, for any block.
            single_steps: whether executions have one step.
        """
        self._chooser, self._executables = chooser, chooser.executables
        self._blocks = BlockPlans(chooser, plan, single_steps)
        self._single_steps = single_steps

    def programs(self, state: State, execution: ExecutionSteps) -> LoopPrograms:
        """Returns the compiled programs of an execution.

        Args:
            state: specs of the state in the form that Keras keeps.
            execution: its blocks need no batches.
        """
        compiled: dict[int, CompiledCall] = {}
        blocks = self._blocks
        try:
            self._executables.see(specs_of_programs(blocks.base, state))
            blocks.extend_records(execution.longest)
            rules = CallRules.of(
                blocks.base, self._single_steps, execution.longest, execution.chunk
            )
            for call, executable, _ in blocks.calls(execution.slices, rules, blocks.enter):
                is_loop = blocks.forms.form.is_loop
                found = CompiledCall(call.program, executable, call.steps, is_loop)
                compiled[id(executable)] = found
        finally:
            self._executables.forget()
        plan = blocks.of_block
        return LoopPrograms(
            plan,
            tuple(compiled.values()),
            lambda: self._chooser.find(plan, APPLY),
        )

    def compile(self, state: State, execution: ExecutionSteps) -> None:
        """Compiles the programs of an execution, for its runner to find."""
        self.programs(state, execution)
