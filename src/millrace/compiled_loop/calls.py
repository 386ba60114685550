"""Which calls of compiled code an execution makes: one plan for who runs them and who reads them.

    slice        |0 1 2 3 4 5 6 7 8 9|                     accumulation 4
    calls         run(0, 8)  zeros  accumulate(8, 2)       the next slice goes on
    slice        |0 1 ...
    calls         accumulate(0, 2)  apply  ...

Nearly all updates lie whole in one slice.
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
    """How the programs for one block are made."""

    form: LoopForm
    tap_room: int | None  # steps of a call whose taps it returns, at most; None is any number
    update_fits_one_call: bool


class CallPlan:
    """The calls of one execution, slice by slice."""

    def __init__(self, plan: Plan, longest: int, chunk: int | None, single_steps: bool):
        """Begins an execution.

        Args:
            plan: of its programs, for any block.
            longest: steps of a full execution, which decides how far unrolled code goes.
            chunk: steps of a call, at most, where someone waits for early results.
            single_steps: whether executions have one step, which needs no loop around it.
        """
        self._trains = plan.mode is Mode.TRAIN
        self._update_steps, self._replicas = plan.update_steps, plan.replicas
        self._longest, self._chunk, self._single_steps = longest, chunk, single_steps
        self._begun: int | None = None  # steps of an update that is not over

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
                for steps, unroll in self._split(
                    forms, size, start, whole, self._longest, self._chunk
                ):
                    yield Call("run", start, steps, unroll)
                    start += steps
                continue
            if self._begun is None:
                self._begun = 0
                yield Call("zeros", start)
            part = min(end - start, size - self._begun)
            for steps, unroll in self._split(forms, self._replicas, start, part, size, None):
                yield Call("accumulate", start, steps, unroll)
                start += steps
                self._begun += steps
            if self._begun == size:
                self._begun = None
                yield Call("apply")

    def rest(self) -> Iterator[Call]:
        """Yields the call that ends an update for which there is no more data."""
        if self._begun is not None:
            self._begun = None
            yield Call("apply")

    def _whole(self, steps: int, forms: Forms) -> int:
        """Returns how many of the next steps one program can run whole."""
        if not self._trains:
            return steps
        size = self._update_steps
        return steps // size * size if forms.update_fits_one_call else 0

    def _split(
        self, forms: Forms, unit: int, start: int, count: int, longest: int, chunk: int | None
    ) -> Iterator[tuple[int, int | None]]:
        form = forms.form
        if self._single_steps and form.is_loop:
            form = LoopForm(unroll=1)
        limits = [forms.tap_room]
        if form.is_loop:  # unrolled code is of fixed length, whoever waits for results
            limits.append(chunk)
        known = [limit for limit in limits if limit is not None]
        unroll = None
        if not form.is_loop:
            most = min([longest, *known])
            unroll = best_unroll(form, max(1, most // unit), unit // self._replicas)
        return _lengths(start, count, unit, self._replicas, unroll, min(known, default=None))


def _lengths(
    start: int, count: int, unit: int, replicas: int, unroll: int | None, limit: int | None
) -> Iterator[tuple[int, int | None]]:
    """Yields (steps, iterations to unroll or None) of calls that together run `count` steps.

    A loop runs any number of steps. Unrolled code has a fixed length; what it leaves over runs
    one iteration at a time. An iteration is `unit` steps: one update, or one round of the
    replicas, the last of which may have fewer, as may the first where `start` is within a round.

    Args:
        start: first step in its block.
        count: steps.
        unit: steps of an iteration.
        replicas: steps of a round.
        unroll: iterations of unrolled code; None for a loop.
        limit: steps of one call of a loop, at most.
    """
    if unroll is None:
        most = count if limit is None else max(1, limit // unit) * unit
    else:
        most = unroll * unit
    while count:
        begun = start % replicas
        if unroll is not None and (begun or count < most):
            yield (steps := min(count, unit - begun)), 1
        else:
            yield (steps := min(count, most)), unroll
        start += steps
        count -= steps


def best_unroll(form: LoopForm, iterations: int, unit: int = 1) -> int:
    """Returns how many iterations to unroll for executions of `iterations` of them.

    The longest that leaves nothing over, if it is at least half of what may be unrolled: 8 of 8
    for 1000, 5 for 100. What is left over would run in a second program, which takes longer to
    compile than it saves. Else the one that takes the fewest calls: 8 for 97.
    """
    most = max(1, min(iterations, (form.unroll or 1) // unit))
    whole = [n for n in range(most, (most - 1) // 2, -1) if iterations % n == 0]
    return (
        whole[0]
        if whole
        else min(range(most, 0, -1), key=lambda n: iterations // n + iterations % n)
    )
