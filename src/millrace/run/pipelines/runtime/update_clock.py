"""The parts of the time of a pipeline's updates, in a process of several.

feed        wait for the batches of an update
run         dispatch    Python, and JAX's calls: this thread has the core
            devices     the rest: devices compute, arrays move, other processes are late
"""

import time

from millrace.base.records.statistics import UpdateSeconds


class UpdateClock:
    """Adds up the times of the updates of one runner, of which its thread tells begin and end."""

    def __init__(self) -> None:
        self.seconds = UpdateSeconds()
        self._began: float | None = None
        self._asked = self._processor = 0.0

    def begin(self, asked: float) -> None:
        """Begins an update, for whose batches the thread has waited since `asked`."""
        self._asked, self._began = asked, time.perf_counter()
        self._processor = time.thread_time()

    def end(self) -> None:
        """Ends an update."""
        if self._began is None:
            return
        run = time.perf_counter() - self._began
        dispatch = min(time.thread_time() - self._processor, run)
        self.seconds += UpdateSeconds(
            updates=1, devices=run - dispatch, dispatch=dispatch, feed=self._began - self._asked
        )
