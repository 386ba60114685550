"""What is to be said once, whichever thread comes first."""

import threading


class Notes:
    """Remembers which notes were made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: set[str] = set()

    def is_new(self, note: str) -> bool:
        """Returns whether a note was not made before; from now on it was."""
        with self._lock:
            is_new = note not in self._made
            self._made.add(note)
            return is_new

    def clear(self) -> None:
        """Forgets all notes."""
        with self._lock:
            self._made.clear()
