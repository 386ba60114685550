"""Programs that this process has compiled, to say what is different about the next one."""

import threading
import zlib
from collections import deque
from dataclasses import dataclass

from millrace.records.compilation import ProgramKey

KEPT = 50  # keys of each program
MAX_TEXT = 4_000_000  # characters of a program whose text is kept: ResNet50's has 700,000


@dataclass(frozen=True, slots=True)
class Compilation:
    """One that took place."""

    key: ProgramKey
    text: bytes  # of the program in StableHLO, compressed; empty if that is too long


class History:
    """The newest compilations of each program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, deque[Compilation]] = {}

    def keys(self, program: str) -> list[ProgramKey]:
        """Returns the keys of programs of that name, the newest last."""
        with self._lock:
            return [each.key for each in self._known.get(program, ())]

    def text_of(self, key: ProgramKey) -> str:
        """Returns the text of the newest program of this key; empty if it was not kept."""
        with self._lock:
            known = list(self._known.get(key.program, ()))
        found = (each.text for each in reversed(known) if each.key.digest == key.digest)
        text = next(found, b"")
        return zlib.decompress(text).decode() if text else ""

    def add(self, key: ProgramKey, text: str) -> None:
        """Takes note of a compilation."""
        packed = zlib.compress(text.encode(), 1) if len(text) <= MAX_TEXT else b""
        with self._lock:
            self._known.setdefault(key.program, deque(maxlen=KEPT)).append(Compilation(key, packed))

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._known.clear()


history = History()
