"""Loops whose body the host drives, such as one with a pipeline in it.

trace of a function -> require_host() raises OnHost -> the function is called as it is, untraced

values, element -> body, untraced -> values        what it enqueues arrives after each turn
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from millrace._compat.jax_tracing import is_tracing
from millrace._compat.keras_scope import current_scope
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.body import Body, Carried, next_values, truth_of
from millrace.taps.taps import collecting


class OnHost(BaseException):
    """Ends the trace of a function that the host has to drive."""


def require_host() -> None:
    """Ends the trace that is going on, if any.

    Raises:
        OnHost: caught by what had begun the trace of a function of the user's.
    """
    if is_tracing() or current_scope() is not None:
        raise OnHost


class LoopByHost:
    """A loop of Python."""

    def __init__(
        self,
        body: Callable[..., Any],
        condition: Callable[..., Any] | None,
        carried: Carried,
        infeed: InfeedQueue | None,
    ):
        self._body, self._specs, self._infeed = Body(body), carried.specs, infeed
        self._condition = None if condition is None else Body(condition, "condition")

    def run(self, values: list[Any], limit: int | None) -> list[Any]:
        """Runs the loop; returns what the last turn has.

        Args:
            values: what goes in.
            limit: turns, at most; None is no limit.
        """
        for _ in itertools.count() if limit is None else range(limit):
            if self._condition is not None and not truth_of(self._condition(values)):
                break
            values, tapped = collecting(self._turn)(values, self._element())
            for queue, value in tapped.items():
                queue.expect()
                queue.receive(jax.tree.map(lambda leaf: np.array(leaf)[None], value), 1)
        return values

    def _element(self) -> Any:
        if self._infeed is None:
            return None
        segment = self._infeed.take(1)
        return jax.tree.map(lambda leaf: leaf[segment.start], segment.block.batches)

    def _turn(self, values: list[Any], element: Any) -> list[Any]:
        return next_values(self._body(values, element), self._specs)
