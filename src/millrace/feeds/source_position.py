"""The position in a data source, with what it takes to come to the same position again.

    fit             |0 1 2 3 4 5|                    has run 6 batches
    infeed's thread |0 1 2 3 4 5 6 7 8 9|            has drawn 10
    states          0         4         8            of the source, after so many batches

A training goes on from the newest state that is not after its own position: here 4, and batches 4
and 5 are drawn and dropped. A source without states is drawn from its beginning.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace.pytrees import ArrayTree

logger = logging.getLogger("millrace")

_SHARE = 0.02  # of the time at most is spent on states
_SLOW_SECONDS = 1.0  # after which a fast-forward is announced


class StateFunctions(NamedTuple):
    """Return and set the state of a source: plain values and arrays."""

    get: Callable[[], Any]
    set: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source after a number of batches of its pass."""

    drawn: int
    state: Any


class TrackedBatches:
    """The batches of one pass, and the states of their source."""

    def __init__(
        self,
        batches: Iterator[ArrayTree],
        functions: StateFunctions | None = None,
        begin: SourceState | None = None,
    ):
        """Begins a pass.

        Args:
            batches: of the pass.
            functions: of the source, if it has a state.
            begin: state in which the pass begins here; None at its beginning.
        """
        self._batches = batches
        self._get = None if functions is None else functions.get
        self.drawn = 0
        if begin is not None and functions is not None:
            functions.set(begin.state)
            self.drawn = begin.drawn
        self._states: deque[SourceState] = deque()
        self._next_time = 0.0  # at which a state is read again
        self._read_state()

    def __iter__(self) -> Iterator[ArrayTree]:
        return self

    def __next__(self) -> ArrayTree:
        batch = next(self._batches)
        self.drawn += 1
        if self._get is not None and time.perf_counter() >= self._next_time:
            self._read_state()
        return batch

    def skip_to(self, steps: int) -> None:
        """Draws the batches before a position, and drops them."""
        while self.drawn < steps:
            next(self)

    def state_at(self, steps: int) -> SourceState | None:
        """Returns the newest state up to a position, and forgets those before it."""
        while len(self._states) > 1 and self._states[1].drawn <= steps:
            self._states.popleft()
        if self._states and self._states[0].drawn <= steps:
            return self._states[0]
        return None

    def _read_state(self) -> None:
        if self._get is None:
            return
        begin = time.perf_counter()
        self._states.append(SourceState(self.drawn, self._get()))
        end = time.perf_counter()
        self._next_time = end + (end - begin) / _SHARE


class FastForward:
    """Announces a source that is read again up to a position, if that takes long."""

    def __init__(self, what: str, first: int, steps: int):
        """Begins.

        Args:
            what: is drawn: "batch" or "element".
            first: number of those that need not be drawn.
            steps: number of those before the position.
        """
        self._what, self._first, self._steps = what, first, steps
        self._begin, self._is_said = time.perf_counter(), False

    def has_drawn(self, drawn: int) -> None:
        """Logs once how long it takes, given the number drawn so far."""
        seconds = time.perf_counter() - self._begin
        if self._is_said or seconds <= _SLOW_SECONDS or drawn <= self._first:
            return
        self._is_said = True
        logger.warning(
            "The data is read again up to %s %d, which takes some %.0f s: it has no state that "
            "can be set. Data with get_state() and set_state() goes on at once.",
            self._what,
            self._steps,
            seconds * (self._steps - self._first) / (drawn - self._first),
        )
