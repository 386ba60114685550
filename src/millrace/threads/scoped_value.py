"""Values that hold in one thread for as long as a `with` block lasts.

    _log = ScopedValue[CompileLog](default_log)

    _log.get()                   -> default_log
    with _log.bound_to(another):
        _log.get()               -> another, in this thread alone

Which model is running, which stage a layer is called in, where taps are collected: all that code
must know and is not passed, since a function of Keras or of the user lies between, is such a value.
Values are kept by thread and not by context (`contextvars`), as Keras and JAX keep theirs.
"""

import threading
from types import TracebackType
from typing import Generic, TypeVar

BoundValue = TypeVar("BoundValue")


class _Slot(threading.local):
    def __init__(self, default: object):
        self.value = default  # called in each thread that looks


class ScopedValue(Generic[BoundValue]):
    """A value of which each thread has its own."""

    __slots__ = ("_slot",)

    def __init__(self, default: BoundValue):
        """Sets what threads find outside of all blocks.

        Args:
            default: the same object for all threads.
        """
        self._slot = _Slot(default)

    def get(self) -> BoundValue:
        """Returns the value of the innermost block of this thread."""
        return self._slot.value  # type: ignore[return-value]

    def bound_to(self, value: BoundValue) -> "Binding[BoundValue]":
        """Returns a context manager inside which this thread has another value, and gives it."""
        return Binding(self._slot, value)


class Binding(Generic[BoundValue]):
    """A block with a value. It can be entered once at a time."""

    __slots__ = ("_before", "_slot", "_value")

    def __init__(self, slot: _Slot, value: BoundValue):
        self._slot, self._value = slot, value

    def __enter__(self) -> BoundValue:
        self._before = self._slot.value
        self._slot.value = self._value
        return self._value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._slot.value = self._before
