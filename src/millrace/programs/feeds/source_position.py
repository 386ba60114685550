"""The position in a data source, with what it takes to come to the same position again.

    fit             |0 1 2 3 4 5|                    has run 6 batches
    infeed's thread |0 1 2 3 4 5 6 7 8 9|            has drawn 10
    states          0         4         8            of the source, after so many batches

A training continues from the newest state that is not after its own position: here 4, and batches 4
and 5 are drawn and dropped. A source without states is drawn from its beginning.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from millrace.base.checkpoints.plain_values import NotPlainError, copied, decode, encode
from millrace.base.pytrees import ArrayTree

logger = logging.getLogger("millrace")

_SHARE = 0.02  # of the time at most is spent on states
_SLOW_SECONDS = 1.0  # after which a fast-forward is announced


class StateRefusedError(Exception):
    """A source does not take the state that it has returned in another process."""


class StateFunctions(NamedTuple):
    """Return and set the state of a source: plain values and arrays; None while it has none."""

    get: Callable[[], Any]
    set: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a source after a number of batches of its pass."""

    drawn: int
    state: Any


class TrackedBatches(Iterator[ArrayTree]):
    """The batches of one pass, and the states of their source."""

    def __init__(
        self,
        batches: Iterator[ArrayTree],
        functions: StateFunctions | None = None,
        begin: SourceState | None = None,
    ):
        """Begins a pass.

        Args:
            batches: of the pass. With a method `skip` they can be skipped without being read, and
                the state of the source does not include the position.
            functions: of the source, if it has a state.
            begin: state in which the pass begins here; None at its beginning.

        Raises:
            StateRefusedError: if the source does not take that state.
        """
        self._batches = batches
        self._functions = functions
        self._skip: Callable[[], None] | None = getattr(batches, "skip", None)
        self._begin = None if functions is None else begin
        self.drawn = 0
        self.has_ended = False  # whether more batches were asked for than there are
        self._states: deque[SourceState] = deque()
        self._next_time = 0.0  # at which a state is read again
        if self._begin is not None and (self._skip is None or not self._begin.drawn):
            self.drawn = self._begin.drawn
            self._set_state(self._begin)
        else:
            self._read_state()

    def __next__(self) -> ArrayTree:
        try:
            batch = next(self._batches)
        except StopIteration:
            self.has_ended = True
            raise
        self.drawn += 1
        if self._functions is not None and time.perf_counter() >= self._next_time:
            self._read_state()
        return batch

    def skip(self) -> bool:
        """Skips a batch, without reading it where that is possible.

        Returns:
            Whether there was one.
        """
        is_cheap = self._functions is None or self._begin is not None
        if self._skip is None or not is_cheap:
            return next(self, self) is not self
        try:
            self._skip()
        except StopIteration:
            self.has_ended = True
            return False
        self.drawn += 1
        if self._begin is not None and self.drawn == self._begin.drawn:
            self._states.clear()
            self._set_state(self._begin)
        return True

    @property
    def asked(self) -> int:
        """Number of batches that were asked for, with the one that was not there."""
        return self.drawn + self.has_ended

    def state_at(self, steps: int) -> SourceState | None:
        """Returns the newest state up to a position, and forgets those before it."""
        while len(self._states) > 1 and self._states[1].drawn <= steps:
            self._states.popleft()
        if self._states and self._states[0].drawn <= steps:
            return self._states[0]
        return None

    def _set_state(self, begin: SourceState) -> None:
        assert self._functions is not None  # noqa: S101 - for types
        try:
            self._functions.set(begin.state)
        except ValueError as error:
            raise StateRefusedError(str(error)) from error
        self._states.append(begin)
        self._begin = None

    def _read_state(self) -> None:
        if self._functions is None:
            return
        begin = time.perf_counter()
        try:
            arrays: list[Any] = []
            found = self._functions.get()
            if found is None:
                return
            state = copied(decode(encode(found, arrays), arrays))
        except (NotPlainError, NotImplementedError) as error:
            logger.warning(
                "The state of the data cannot be saved: it has %s. A training that continues from "
                "a checkpoint reads the data again up to its position.",
                error,
            )
            self._functions = None
            return
        self._states.append(SourceState(self.drawn, state))
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
            "can be set. Data with get_state() and set_state() continues at once.",
            self._what,
            self._steps,
            seconds * (self._steps - self._first) / (drawn - self._first),
        )
