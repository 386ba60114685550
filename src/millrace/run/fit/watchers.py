"""The listeners to tensors of one model, and the thread that brings them values."""

import functools
import operator

from millrace.base.options import NO_TAPS, TapRequest
from millrace.errors import OptionError
from millrace.programs.taps.delivery import Delivery, TapListener


class Watchers:
    """The listeners of one model, and the tensors that each wants."""

    def __init__(self) -> None:
        self.outfeed = Delivery()
        self._wanted: dict[TapListener, TapRequest] = {}
        self._until_end: list[TapListener] = []  # since the running call began

    @property
    def taps(self) -> TapRequest:
        """All tensors that are watched."""
        wanted = list(self._wanted.values())  # without NO_TAPS, which says `every=1`
        return functools.reduce(operator.or_, wanted) if wanted else NO_TAPS

    def watch(self, listener: TapListener, taps: TapRequest, until_end: bool) -> None:
        """Sends statistics of tensors to a listener, from the next execution on.

        Args:
            listener: gets them until `unwatch`.
            taps: the tensors.
            until_end: whether to stop at the end of the running call, even if that fails.

        Raises:
            OptionError: if it watches already: every number would be counted twice.
        """
        if listener in self._wanted:
            raise OptionError(
                f"callbacks holds the same {type(listener).__name__} twice, and each value would "
                "be counted twice. List it once, or make another one."
            )
        self._wanted[listener] = taps
        self.outfeed.listeners.append(listener)
        if until_end:
            self._until_end.append(listener)

    def unwatch(self, listener: TapListener) -> None:
        """Delivers all values, and ends `watch`."""
        try:
            if listener in self._wanted:
                self.outfeed.flush()
        finally:
            self._forget(listener)

    def close(self) -> None:
        """Delivers all values, and forgets the listeners of the call that ends."""
        try:
            self.outfeed.close()
        finally:
            for listener in self._until_end:
                self._forget(listener)
            self._until_end.clear()

    def _forget(self, listener: TapListener) -> None:
        if self._wanted.pop(listener, None) is not None:
            self.outfeed.listeners.remove(listener)
