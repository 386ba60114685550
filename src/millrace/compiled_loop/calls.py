"""The calls of compiled code in an execution: one plan that runs and dry runs share.

    slice        |0 1 2 3 4 5 6 7 8 9|                     accumulation 4
    calls         run(0, 8)  zeros  accumulate(8, 2)       the next slice continues the update
    slice        |0 1 ...
    calls         accumulate(0, 2)  apply  ...

Nearly all updates lie within one slice.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from millrace.plan import LoopForm, Mode, Plan

ProgramName = Literal["run", "zeros", "accumulate", "apply"]


class Call(NamedTuple):
    """One call of a program of the model."""

    program: ProgramName
    start: int = 0  # first step, in its block
    steps: int = 0
    unroll: int | None = None  # iterations of unrolled code; None is a loop


class Forms(NamedTuple):
    """The form of the programs for one block, and the length of their calls."""

    form: LoopForm
    max_tapped_steps: int | None  # most steps of a call that returns taps; None: no limit
    update_fits_one_call: bool


class CallPlan:
    """The calls of one execution, slice by slice."""

    def __init__(self, plan: Plan, longest: int, chunk: int | None, single_steps: bool):
        """Begins an execution.

        Args:
            plan: of its programs, for any block.
            longest: steps of a full execution, which decides the length of unrolled code.
            chunk: most steps of a call, where someone waits for early results.
            single_steps: whether executions have one step, which needs no loop around it.
        """
        self._trains = plan.mode is Mode.TRAIN
        self._update_steps, self._replicas = plan.update_steps, plan.replicas
        self._longest, self._chunk, self._single_steps = longest, chunk, single_steps
        self._begun: int | None = None  # steps so far of an update that is not over

    def of_slice(self, start: int, count: int, forms: Forms) -> Iterator[Call]:
        """Yields the calls for a slice of a block.

        Args:
            start: its first step in its block.
            count: its steps.
            forms: of the programs for the block.
        """
        end, size = start + count, self._update_steps
        while start < end:
            whole = self._whole(end - start, forms) if self._begun is None else 0
            if whole:
                span = _Span(start, whole, size, self._replicas)
                for steps, unroll in self._split(forms, span, self._longest, self._chunk):
                    yield Call("run", start, steps, unroll)
                    start += steps
                continue
            if self._begun is None:
                self._begun = 0
                yield Call("zeros", start)
            steps_left = min(end - start, size - self._begun)
            span = _Span(start, steps_left, self._replicas, self._replicas)
            for steps, unroll in self._split(forms, span, size, None):
                yield Call("accumulate", start, steps, unroll)
                start += steps
                self._begun += steps
            if self._begun == size:
                self._begun = None
                yield Call("apply")

    def end(self) -> Iterator[Call]:
        """Yields the call that ends an update for which there is no more data."""
        if self._begun is not None:
            self._begun = None
            yield Call("apply")

    def _whole(self, steps: int, forms: Forms) -> int:
        """Returns how many of the next steps form whole updates that one program can run."""
        if not self._trains:
            return steps
        size = self._update_steps
        return steps // size * size if forms.update_fits_one_call else 0

    def _split(
        self, forms: Forms, span: "_Span", longest: int, chunk: int | None
    ) -> Iterator[tuple[int, int | None]]:
        form = forms.form
        if self._single_steps and form.is_loop:
            form = LoopForm(unroll=1)
        limits = [forms.max_tapped_steps]
        if form.is_loop:  # unrolled code is of fixed length, whoever waits for results
            limits.append(chunk)
        bounds = [limit for limit in limits if limit is not None]
        unroll = None
        if not form.is_loop:
            most = min([longest, *bounds])
            size = span.iteration_steps
            unroll = best_unroll(form, max(1, most // size), size // span.replicas)
        return _lengths(span, unroll, min(bounds, default=None))


class _Span(NamedTuple):
    start: int  # first step in its block
    steps: int
    iteration_steps: int  # steps of an iteration: one update, or one round
    replicas: int  # steps of a round


def _lengths(
    span: _Span, unroll: int | None, limit: int | None
) -> Iterator[tuple[int, int | None]]:
    """Yields (steps, iterations to unroll or None) of calls that together run the span.

    A loop runs any number of steps. Unrolled code has a fixed length; the steps that remain run
    one iteration at a time. The last round may have fewer steps than replicas, and so may the
    first if the span begins within a round.

    Args:
        span: steps to run.
        unroll: iterations of unrolled code; None for a loop.
        limit: most steps of one call of a loop; None: no limit.
    """
    start, steps_left, size, replicas = span
    if unroll is None:
        most = steps_left if limit is None else max(1, limit // size) * size
    else:
        most = unroll * size
    while steps_left:
        begun = start % replicas
        if unroll is not None and (begun or steps_left < most):
            yield (steps := min(steps_left, size - begun)), 1
        else:
            yield (steps := min(steps_left, most)), unroll
        start += steps
        steps_left -= steps


def best_unroll(form: LoopForm, iterations: int, iteration_rounds: int = 1) -> int:
    """Returns how many iterations to unroll for executions of `iterations` iterations.

    The largest divisor, if it is at least half of the allowed number: 8 of 8 for 1000, 5 for 100.
    A remainder would run in a second program, which takes longer to compile than it saves.
    Otherwise the number that takes the fewest calls: 8 for 97.

    Args:
        form: unrolled, with the most rounds that a program may contain.
        iterations: iterations of one execution.
        iteration_rounds: rounds of one iteration.
    """
    most = max(1, min(iterations, (form.unroll or 1) // iteration_rounds))
    whole = [n for n in range(most, (most - 1) // 2, -1) if iterations % n == 0]
    return (
        whole[0]
        if whole
        else min(range(most, 0, -1), key=lambda n: iterations // n + iterations % n)
    )
