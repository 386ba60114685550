"""A table of expensive values: each is made once, by the first thread that asks for it.

    thread 1   get(a) |-- makes a --|
    thread 2     get(a) ....waits...| the same a
    thread 3   get(b) |-- makes b --|            waits for nobody

The lock of the table is held for a look-up, never while a value is made: that may run the user's
code, which may wait for other threads or ask the table for another value. Only threads that ask for
the same value wait for each other.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MadeValue = TypeVar("MadeValue")


class MadeOnce(Generic[MadeValue]):
    """Values by key, of which the most recently used are kept."""

    def __init__(self, limit: int | None = None):
        """Makes an empty table.

        Args:
            limit: number of values to keep; None keeps all.
        """
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[MadeValue]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], MadeValue]) -> MadeValue:
        """Returns the value of a key.

        Args:
            key: of the value. If it contains addresses of objects, the value must keep these
                objects alive.
            make: makes the value if there is none yet. If it raises, the next call tries again.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
            self._entries.move_to_end(key)
            if self._limit is not None and len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        return entry.value(make)

    def drop(self, count: int) -> None:
        """Forgets those of the values that were made whose last use is the longest ago."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if entry.made][:count]:
                del self._entries[key]

    def __len__(self) -> int:
        return len(self.values())

    def values(self) -> list[MadeValue]:
        """Returns the values that have been made, in order of use."""
        with self._lock:
            return [value for entry in self._entries.values() for value in entry.made]


class _Entry(Generic[MadeValue]):
    """One value, once it has been made."""

    __slots__ = ("_lock", "made")

    def __init__(self) -> None:
        self.made: tuple[MadeValue] | tuple[()] = ()
        self._lock = threading.RLock()  # `make` may ask for the same value, and recurses then

    def value(self, make: Callable[[], MadeValue]) -> MadeValue:
        if not self.made:
            with self._lock:
                if not self.made:
                    self.made = (make(),)
        return self.made[0]
