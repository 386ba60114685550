"""The programs that this process has compiled, for comparison with the next one."""

import threading
import zlib
from collections import deque

from millrace.records.compilation import ProgramKey

KEPT = 50  # keys of each program
MAX_TEXT = 4_000_000  # characters of a program whose text is kept: ResNet50's has 700,000


class History:
    """The newest compilations of each program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Keys, and texts in StableHLO, compressed; a text is empty if it is too long.
        self._programs: dict[str, deque[tuple[ProgramKey, bytes]]] = {}

    def keys(self, program: str) -> list[ProgramKey]:
        """Returns the keys of programs of that name, the newest last."""
        with self._lock:
            return [key for key, _ in self._programs.get(program, ())]

    def text_of(self, key: ProgramKey) -> str:
        """Returns the text of the newest program of this key; empty if it was not kept."""
        with self._lock:
            programs = list(self._programs.get(key.program, ()))
        texts = (text for other, text in reversed(programs) if other.digest == key.digest)
        text = next(texts, b"")
        return zlib.decompress(text).decode() if text else ""

    def add(self, key: ProgramKey, text: str) -> None:
        """Adds a compilation."""
        packed = zlib.compress(text.encode(), 1) if len(text) <= MAX_TEXT else b""
        with self._lock:
            self._programs.setdefault(key.program, deque(maxlen=KEPT)).append((key, packed))

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._programs.clear()


history = History()
