"""What a runner is: it runs executions, and says beforehand what they will run.

A model in one piece     runner.py, dry_run.py
A pipeline               pipelines/runtime/
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from millrace.compiled_loop.result import CallResult, Halted
from millrace.feeds.block import BlockSlice
from millrace.records.run import PipelineStatistics
from millrace.steps.state import State

Programs = TypeVar("Programs", covariant=True)


class ExecutionSteps(NamedTuple):
    """The steps of one execution."""

    slices: Iterable[BlockSlice]  # in order; each is dispatched as soon as it is there
    longest: int  # steps of a full execution, which decides how far unrolled code goes
    chunk: int | None = None  # steps of a call, at most, where someone waits for early results


class DryRun(Protocol[Programs]):
    """Compiles what executions would run, and remembers it as their runner would."""

    def programs(self, state: Any, execution: ExecutionSteps) -> Programs:
        """Returns what an execution runs, compiled.

        Args:
            state: specs of the state, as Keras has it.
            execution: whose blocks need no batches.
        """
        ...

    def compile(self, state: Any, execution: ExecutionSteps) -> None:
        """Compiles what an execution runs, for its runner to have it."""
        ...


class Runner(Protocol):
    """Runs the executions of one mode of one model."""

    dispatches: int  # calls of compiled code so far

    @property
    def state(self) -> State | None:
        """The newest state of a running execution; what is left of it if the execution fails."""
        ...

    @property
    def halted(self) -> Halted | None:
        """The update before which the last execution ended, if one was not applied."""
        ...

    @property
    def statistics(self) -> PipelineStatistics | None:
        """What the host did to run a pipeline; None for a model in one piece."""
        ...

    def run(self, state: State, execution: ExecutionSteps) -> tuple[State, list[CallResult]]:
        """Runs one execution and does not wait for it.

        Args:
            state: consumed; its memory becomes that of the new state.
            execution: what to run.

        Returns:
            The new state, and a part for each call that has a result.
        """
        ...

    def dry_run(self, single_steps: bool | None = None) -> DryRun[Any]:
        """Returns what compiles for this runner, and leaves it as it is.

        Args:
            single_steps: whether executions have one step; None if they have as many as now.
        """
        ...

    def make_room(self, steps: int) -> None:
        """Lets calls return the results of so many steps, where those are wanted."""
        ...

    def gather(self, role: str, values: Iterable[Any]) -> list[Any]:
        """Returns values of the state as variables hold them; all processes call it together."""
        ...

    def release(self) -> None:
        """Lets go of the data of a loop that has ended."""
        ...
