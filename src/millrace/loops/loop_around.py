"""The loop whose body is being traced, for what works only inside of one.

repeat(n, body)   body -> optimizer.apply -> needs_multiple_of(4)      n % 4 is an error
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from millrace.errors import PlanError


class LoopAround:
    """What the body of a loop has asked of it."""

    def __init__(self, is_counted: bool):
        """Begins with nothing.

        Args:
            is_counted: whether the number of turns is known before the first one.
        """
        self.is_counted = is_counted
        self._windows: list[int] = []

    def needs_multiple_of(self, turns: int) -> None:
        """Takes note that the number of turns must be a multiple."""
        if turns not in self._windows:
            self._windows.append(turns)

    @property
    def windows(self) -> tuple[int, ...]:
        """What the number of turns must be a multiple of."""
        return tuple(self._windows)

    def check(self, turns: int) -> None:
        """Checks a number of turns.

        Raises:
            PlanError: if it is no multiple of what the body needs.
        """
        for window in self._windows:
            if turns % window:
                fitting = max(turns // window, 1) * window
                raise PlanError(
                    f"A loop of {turns} turns accumulates the gradients of {window} turns for "
                    f"each update, and {turns} is no multiple of {window}. Set n={fitting} in "
                    "repeat(), or another number of mini-batches in the optimizer."
                )


_around: ContextVar[LoopAround | None] = ContextVar("loop_around", default=None)


def loop_around() -> LoopAround | None:
    """Returns the innermost loop of the user's whose body is being traced."""
    return _around.get()


@contextmanager
def inside(loop: LoopAround | None) -> Iterator[None]:
    """Says that the body of a loop is traced inside."""
    token = _around.set(loop)
    try:
        yield
    finally:
        _around.reset(token)
