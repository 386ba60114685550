"""The threads of a loop's device groups, which wait for what their devices do.

    run(0, work)   thread of group 0   |-work-|-work-|        |-work-|
    run(1, work)   thread of group 1     |-work-|  |-work-|

The first work of a group starts its thread, which waits for more: to start a thread for each trace
would take as long as a small update.
"""

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], object]
JOIN_SECONDS = 5.0  # longest wait for the threads at the end of a loop


class GroupThreads:
    """Runs each device group's work in order, on a thread of its own."""

    def __init__(self) -> None:
        """Begins without threads."""
        self._queues: dict[int, SimpleQueue[Work | None]] = {}
        self._threads: list[threading.Thread] = []

    def run(self, group: int, work: Work) -> None:
        """Runs work after all that its group was given earlier; returns at once."""
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = SimpleQueue()
            thread = threading.Thread(
                target=_work, args=(queue,), name="millrace-timing", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        queue.put(work)

    def close(self) -> None:
        """Ends the threads after their work, and waits for them; they start again when needed."""
        for queue in self._queues.values():
            queue.put(None)
        end = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        self._queues, self._threads = {}, []


def _work(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        work()
