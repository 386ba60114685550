"""The interface of runners, which run executions, and of their dry runs, which only compile.

A model in one piece     runner.py, dry_run.py
A pipeline               pipelines/runtime/
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from millrace.compiled_loop.result import CallResult, Halted
from millrace.feeds.block import BlockSlice
from millrace.records.run import PipelineStatistics
from millrace.steps.state import State

Programs = TypeVar("Programs", covariant=True)


class ExecutionSteps(NamedTuple):
    """The steps of one execution."""

    slices: Iterable[BlockSlice]  # in order; each is dispatched as soon as it is ready
    longest: int  # steps of a full execution, which decides the length of unrolled code
    chunk: int | None = None  # most steps of a call, where someone waits for early results


class DryRun(Protocol[Programs]):
    """Compiles the programs of executions, for their runner to find."""

    def programs(self, state: State, execution: ExecutionSteps) -> Programs:
        """Returns the compiled programs of an execution.

        Args:
            state: specs of the state in the form that Keras keeps.
            execution: its blocks need no batches.
        """
        ...

    def compile(self, state: State, execution: ExecutionSteps) -> None:
        """Compiles the programs of an execution, for its runner to find."""
        ...


class Runner(Protocol):
    """Runs the executions of one mode of one model."""

    dispatches: int  # calls of compiled code so far

    @property
    def state(self) -> State | None:
        """The newest state of a running execution, which is what remains if the execution fails."""
        ...

    @property
    def halted(self) -> Halted | None:
        """The update that was refused and ended the last execution; None if there is none."""
        ...

    @property
    def statistics(self) -> PipelineStatistics | None:
        """Statistics of the host's work for a pipeline; None for a model in one piece."""
        ...

    def run(self, state: State, execution: ExecutionSteps) -> tuple[State, list[CallResult]]:
        """Runs one execution and does not wait for it.

        Args:
            state: consumed; its memory becomes that of the new state.
            execution: what to run.

        Returns:
            The new state, and the result of each call that has one.
        """
        ...

    def dry_run(self, single_steps: bool | None = None) -> DryRun[Any]:
        """Returns a dry run that compiles for this runner and does not change it.

        Args:
            single_steps: whether executions have one step; None: as for this runner.
        """
        ...

    def extend_records(self, steps: int) -> None:
        """Makes sure that a call can return the results of `steps` steps, if they are wanted."""
        ...

    def gather(self, role: str, values: Iterable[jax.Array]) -> list[jax.Array]:
        """Returns values of the state in the form that variables hold; a collective operation."""
        ...

    def release(self) -> None:
        """Releases the data of a loop that has ended."""
        ...
