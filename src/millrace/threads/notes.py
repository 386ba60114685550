"""Messages that are given once, by the first thread that has one."""

import threading


class Notes:
    """A set of messages that have been given."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: set[str] = set()

    def is_new(self, note: str) -> bool:
        """Returns True the first time that it is called with a note."""
        with self._lock:
            is_new = note not in self._made
            self._made.add(note)
            return is_new

    def clear(self) -> None:
        """Forgets all notes."""
        with self._lock:
            self._made.clear()
