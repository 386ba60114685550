"""A table of what is expensive to make: each entry is made once, by the first thread that asks.

    thread 1   get(a) |-- makes a --|
    thread 2     get(a) ....waits...| the same a
    thread 3   get(b) |-- makes b --|            waits for nobody

The lock of the table is held for a look-up, never while something is made: making may run code of
the user's, which may wait for other threads or ask the table for something else.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

MadeValue = TypeVar("MadeValue")


class MadeOnce(Generic[MadeValue]):
    """Values by key, of which those used last are kept."""

    def __init__(self, limit: int | None = None):
        """Makes an empty table.

        Args:
            limit: how many values are kept; None keeps all.
        """
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[MadeValue]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], MadeValue]) -> MadeValue:
        """Returns the value of a key.

        Args:
            key: what identifies the value. Where it has addresses of objects in it, the value
                must keep these objects alive.
            make: called if there is no value yet. If it raises, the next call makes the value.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
            if self._limit is not None:
                self._entries.move_to_end(key)
                if len(self._entries) > self._limit:
                    self._entries.popitem(last=False)
        return entry.value(make)

    def __len__(self) -> int:
        return len(self.values())

    def values(self) -> list[MadeValue]:
        """Returns what has been made, in order of use."""
        with self._lock:
            return [value for entry in self._entries.values() for value in entry.made]


class _Entry(Generic[MadeValue]):
    """Room for one value."""

    __slots__ = ("_lock", "made")

    def __init__(self) -> None:
        self.made: tuple[MadeValue] | tuple[()] = ()
        self._lock = threading.RLock()  # what is made may ask for itself, and recurses then

    def value(self, make: Callable[[], MadeValue]) -> MadeValue:
        if not self.made:
            with self._lock:
                if not self.made:
                    self.made = (make(),)
        return self.made[0]
