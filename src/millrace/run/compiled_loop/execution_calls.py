"""The calls of compiled code in an execution: one plan that runs and dry runs share.

    slice        |0 1 2 3 4 5 6 7 8 9|                     accumulation 4
    calls         run(0, 8)  zeros  accumulate(8, 2)       the next slice continues the update
    slice        |0 1 ...
    calls         accumulate(0, 2)  apply  ...

Nearly all updates lie within one slice.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from millrace.programs.plan import LoopForm, Mode, Plan

ProgramName = Literal["run", "zeros", "accumulate", "apply"]
WITH_STEPS = ("run", "accumulate")


class Call(NamedTuple):
    """One call of a program of the model."""

    program: ProgramName
    start: int = 0  # first step, in its slice
    steps: int = 0
    unroll: int | None = None  # iterations of unrolled code; None is a loop


STEP = Call("run", 0, 1, unroll=1)  # of an execution of one step


class Forms(NamedTuple):
    """The form of the programs for one block, and the length of their calls."""

    form: LoopForm
    max_tapped_steps: int | None  # most steps of a call that returns taps; None: no limit
    update_fits_one_call: bool


class CallRules(NamedTuple):
    """What decides the calls of an execution, for any of its blocks."""

    trains: bool
    update_steps: int
    replicas: int
    single_steps: bool  # whether executions have one step, which needs no loop around it
    longest: int  # steps of a full execution, which decides the length of unrolled code
    chunk: int | None  # most steps of a call, where someone waits for early results

    @classmethod
    def of(cls, plan: Plan, single_steps: bool, longest: int, chunk: int | None) -> "CallRules":
        """Returns the rules of an execution with such a plan, whatever its blocks."""
        trains, single_steps = plan.mode is Mode.TRAIN, single_steps and plan.update_steps == 1
        return cls(trains, plan.update_steps, plan.replicas, single_steps, longest, chunk)


APPLY = Call("apply")  # also ends an update for which there is no more data


# Executions of the same length have the same calls: planning them anew took 3 us of the 170 us of
# an execution of a tiny model.
@lru_cache(maxsize=256)
def slice_calls(
    rules: CallRules, forms: Forms, begun: int | None, first: int, count: int
) -> tuple[tuple[Call, ...], int | None]:
    """Returns the calls for a slice of a block, and what they leave of an update.

    Args:
        rules: of the execution.
        forms: of the programs for the block.
        begun: steps so far of an update that earlier slices began; None if there is none.
        first: replica of the slice's first step; 0 if the slice begins a round.
        count: steps of the slice.

    Returns:
        The calls in order, and the steps so far of an update that is not over; None if all are.
    """
    calls: list[Call] = []
    start, size = 0, rules.update_steps
    while start < count:
        whole = _whole(rules, forms, count - start) if begun is None else 0
        if whole:
            span = _Span(first + start, whole, size, rules.replicas)
            for steps, unroll in _split(rules, forms, span, rules.longest, rules.chunk):
                calls.append(Call("run", start, steps, unroll))
                start += steps
            continue
        if begun is None:
            begun = 0
            calls.append(Call("zeros", start))
        steps_left = min(count - start, size - begun)
        span = _Span(first + start, steps_left, rules.replicas, rules.replicas)
        for steps, unroll in _split(rules, forms, span, size, None):
            calls.append(Call("accumulate", start, steps, unroll))
            start += steps
            begun += steps
        if begun == size:
            begun = None
            calls.append(APPLY)
    return tuple(calls), begun


def _whole(rules: CallRules, forms: Forms, steps: int) -> int:
    """Returns how many of the next steps form whole updates that one program can run."""
    if not rules.trains:
        return steps
    size = rules.update_steps
    return steps // size * size if forms.update_fits_one_call else 0


def _split(
    rules: CallRules, forms: Forms, span: "_Span", longest: int, chunk: int | None
) -> Iterator[tuple[int, int | None]]:
    form = forms.form
    if rules.single_steps and form.is_loop:
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
    start: int  # first step, counted from the beginning of a round
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
