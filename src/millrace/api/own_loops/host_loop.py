"""Loops with a body that cannot be compiled, such as a pipeline over several devices.

trace of a function -> require_host() raises OnHost -> the function is called without a trace

values, element -> body, untraced -> values        taps arrive after each iteration
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_steps import current_scope
from millrace.api.own_loops.body import Body, Carried, next_values, truth_of
from millrace.api.own_loops.exchange import deliver_one
from millrace.base.interrupts import raise_if_interrupted
from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.taps import collecting


class OnHost(BaseException):
    """Ends the trace of a function that the host must drive."""


def require_host() -> None:
    """Ends the current trace, if there is one.

    Raises:
        OnHost: caught where millrace has begun to trace the user's function.
    """
    if is_tracing() or current_scope() is not None:
        raise OnHost


class LoopByHost:
    """A loop of Python, which calls the body without compiling it."""

    def __init__(
        self,
        body: Callable[..., object],
        condition: Callable[..., object] | None,
        carried: Carried,
        infeed: InfeedQueue | None,
    ):
        self._body, self._specs, self._infeed = Body(body), carried.specs, infeed
        self._condition = None if condition is None else Body(condition, "condition")

    def run(self, values: list[ArrayTree], limit: int | None) -> list[ArrayTree]:
        """Runs the loop, and returns the values after the last iteration.

        Args:
            values: carried into the first iteration.
            limit: the largest number of iterations; None for no limit.
        """
        for _ in itertools.count() if limit is None else range(limit):
            raise_if_interrupted()
            if self._condition is not None and not truth_of(self._condition(values)):
                break
            values, tapped = collecting(self._iteration)(values, self._element())
            deliver_one(tapped)
        return values

    def _element(self) -> Any:
        if self._infeed is None:
            return None
        elements = self._infeed.take(1)
        return jax.tree.map(lambda leaf: leaf[elements.start], elements.block.batches)

    def _iteration(self, values: list[ArrayTree], element: ArrayTree) -> list[ArrayTree]:
        return next_values(self._body(values, element), self._specs)
