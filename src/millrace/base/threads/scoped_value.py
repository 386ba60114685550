"""Values and notes of one thread, for as long as a block runs.

    _log = ScopedValue[CompileLog](default_log)

    _log.get()                   -> default_log
    with _log.bound_to(another):
        _log.get()               -> another, in this thread alone

Such values are the model that is running, the stage of a layer call, the collection of taps: facts
that cannot be passed as arguments because functions of Keras or of the user lie between. They
belong to threads and not to contexts (`contextvars`), like those of Keras and JAX.
"""

import threading
from typing import Generic, TypeVar


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
        with self._lock:
            self._made.clear()


BoundValue = TypeVar("BoundValue")


class _ThreadSlot(threading.local):
    def __init__(self, default: object):
        self.value = default  # runs once in each thread that uses the value


class ScopedValue(Generic[BoundValue]):
    """A value that is separate for each thread."""

    __slots__ = ("_slot",)

    def __init__(self, default: BoundValue):
        """Sets the value outside of all blocks.

        Args:
            default: the same object for all threads.
        """
        self._slot = _ThreadSlot(default)

    def get(self) -> BoundValue:
        """Returns the value of the innermost block of this thread."""
        return self._slot.value  # type: ignore[return-value]

    def bound_to(self, value: BoundValue) -> "Binding[BoundValue]":
        """Returns a context manager that sets the value in this thread, and yields it."""
        return Binding(self._slot, value)


class Binding(Generic[BoundValue]):
    """A block with a value. It must not be entered again before it is left."""

    __slots__ = ("_before", "_slot", "_value")

    def __init__(self, slot: _ThreadSlot, value: BoundValue):
        self._slot, self._value = slot, value

    def __enter__(self) -> BoundValue:
        self._before = self._slot.value
        self._slot.value = self._value
        return self._value

    def __exit__(self, *error: object) -> None:
        self._slot.value = self._before
