"""How many turns a chunk of a loop has, so that results appear soon and handing over is cheap."""

import time

HOST_SECONDS = 2e-3  # of a chunk that the host calls: beside 0.1 ms, most of it overlapped
CALLBACK_SECONDS = 8e-3  # between two callbacks: beside 0.5 ms, in which the device waits
GROWTH = 4  # from one chunk to the next, at most


class Pace:
    """Chooses the turns of the next chunk from the time that the last ones took."""

    def __init__(self, capacity: int, seconds: float):
        self._capacity, self._seconds = capacity, seconds
        self._turns = 1
        self._begin: float | None = None

    @property
    def turns(self) -> int:
        """Turns that the next chunk should have at most."""
        return self._turns

    def begin(self) -> None:
        """Starts the clock of a chunk."""
        self._begin = time.perf_counter()

    def end(self, turns: int) -> None:
        """Stops it."""
        if self._begin is None or not turns:
            return
        per_turn = max((time.perf_counter() - self._begin) / turns, 1e-9)
        self._begin = None
        wanted = min(int(self._seconds / per_turn), GROWTH * self._turns, self._capacity)
        self._turns = max(1, wanted)
