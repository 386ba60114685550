"""Whole updates in as few calls as their form allows, and one update in several calls."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millrace.compiled_loop.result import Span
from millrace.plan import LoopForm
from millrace.steps.state import State


@dataclass(slots=True)
class Window:
    """An update whose micro-batches do not come from one call."""

    accumulated: Any
    steps: int
    weight: float  # sum of the coefficients so far
    first_rows: int
    before: State | None = None  # where an update may be halted: the state that it began with
    spans: list[Span] = field(default_factory=list)  # of blocks


class Turns:
    """How many steps each call runs.

    A loop runs any number of steps. Unrolled code has a fixed length; what it leaves over runs
    one turn at a time. A turn is `unit` steps: one update, or one round, the last of which may
    have fewer, as may the first where `start` is within a round.
    """

    def __init__(self, form: LoopForm, unit: int, replicas: int, longest: int):
        """Decides how far code is unrolled.

        Args:
            form: of the program.
            unit: steps of a turn.
            replicas: steps of a round.
            longest: steps of a call, at most, where code is unrolled.
        """
        self._unit, self._replicas = unit, replicas
        self._unroll = None
        if not form.is_loop:
            self._unroll = best_unroll(form, max(1, longest // unit), unit // replicas)

    def calls(self, start: int, count: int, limit: int | None) -> Iterator[tuple[int, int | None]]:
        """Yields (steps, turns to unroll or None) of calls that together run `count` steps.

        Args:
            start: first step in its block.
            count: steps.
            limit: steps of one call of a loop, at most.
        """
        unit, unroll = self._unit, self._unroll
        if unroll is None:
            most = count if limit is None else max(1, limit // unit) * unit
        else:
            most = unroll * unit
        while count:
            begun = start % self._replicas
            if unroll is not None and (begun or count < most):
                yield (steps := min(count, unit - begun)), 1
            else:
                yield (steps := min(count, most)), unroll
            start += steps
            count -= steps


def best_unroll(form: LoopForm, turns: int, unit: int = 1) -> int:
    """Returns how many turns to unroll for executions of `turns` of them.

    The longest that leaves nothing over, if it is at least half of what may be unrolled: 8 of 8
    for 1000, 5 for 100. What is left over would run in a second program, which takes longer to
    compile than it saves. Else the one that takes the fewest calls: 8 for 97.
    """
    most = max(1, min(turns, (form.unroll or 1) // unit))
    whole = [n for n in range(most, (most - 1) // 2, -1) if turns % n == 0]
    return whole[0] if whole else min(range(most, 0, -1), key=lambda n: turns // n + turns % n)
