"""The protocol of runners, and what a call of one returns.

    a model in one piece     runner.py, dry_run.py
    a pipeline               pipelines/runtime/

A program that watches gradients inspects an update before it applies it
(`programs/steps/tapped_step.py`). So the state of a halted execution is that from before the
update, and the batches of the update are still in the blocks.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import jax
import numpy as np

from millrace.base.records.statistics import PipelineStatistics
from millrace.base.records.tensors import COUNTS
from millrace.programs.feeds.block import Block, BlockSlice
from millrace.programs.steps.state import State
from millrace.programs.taps.entries import CallResult, Taps
from millrace.programs.taps.tensors import Rows
from millrace.run.timing.tracer import Tracer

# Receives results with taps, in order, as soon as their calls are dispatched.
TapSink: TypeAlias = Callable[[Sequence[CallResult]], None]
BlockSpan: TypeAlias = tuple[Block, int, int]  # block, first step, steps


@dataclass(frozen=True, slots=True)
class Halted:
    """An update that was not applied."""

    batches: tuple[Any, ...]  # its micro-batches, in host memory
    step: int  # of the execution, the first of the update


def is_halted(taps: Taps) -> bool:
    """Whether a call has halted. Waits for the call."""
    return taps.halted is not None and bool(np.asarray(taps.halted))


def updates_before(taps: Taps) -> int:
    """Returns how many updates of a call that has halted were applied."""
    for key, value in taps.updates.items():
        if isinstance(key, Rows):
            return int(np.argmax((np.asarray(value)[:, :, COUNTS] > 0).any(axis=(1, 2))))
    return 0


def batches_of(spans: Iterable[BlockSpan], replicas: int) -> tuple[Any, ...]:
    """Returns copies of the micro-batches of some steps, in host memory."""
    batches = []
    for block, first, steps in spans:
        for step in range(first, first + steps):
            index = (step,) if replicas == 1 else divmod(step, replicas)
            batches.append(jax.tree.map(lambda leaf, i=index: np.array(leaf[i]), block.batches))
    return tuple(batches)


def halted_in_call(
    results: list[CallResult], block: Block, start: int, update_steps: int, replicas: int
) -> Halted:
    """Shortens the last result, of a call that has halted, to end with the refused update.

    Args:
        results: of the execution so far; its last item is replaced.
        block: block of the call.
        start: first step of the call in the block.
        update_steps: steps of an update.
        replicas: number of replicas.
    """
    *before, last = results
    applied = updates_before(last.taps)
    results[-1] = last._replace(steps=(applied + 1) * update_steps, updates=applied + 1)
    batches = batches_of([(block, start + applied * update_steps, update_steps)], replicas)
    return Halted(batches, sum(result.steps for result in before) + applied * update_steps)


def halted_in_calls(results: list[CallResult], spans: Iterable[BlockSpan], replicas: int) -> Halted:
    """Returns the batches and the first step of a refused update of several calls."""
    spans = list(spans)
    steps = sum(steps for _, _, steps in spans)
    return Halted(batches_of(spans, replicas), sum(result.steps for result in results) - steps)


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
    is_timed: bool  # whether `dispatch_seconds` is kept
    tracer: Tracer | None  # chooses the executions that leave a trace; None: without records

    @property
    def dispatch_seconds(self) -> float:
        """The host's seconds in these calls so far."""
        ...

    @property
    def state(self) -> State | None:
        """The newest state of a running execution, which is what remains if the execution fails."""
        ...

    @property
    def steps_done(self) -> int | None:
        """Steps of the last execution that its state has; None if that is within an update."""
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

    def metric_parts(self) -> list[jax.Array]:
        """Returns the metrics of each replica, `[replicas, ...]`: a collective operation.

        None of them where they are not kept apart. Their sums are the metrics of the state; the sum
        of numbers of several executions depends on the order in which they are added.
        """
        ...

    def resume_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Gives the next execution metrics of each replica, as `metric_parts` returns them."""
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
