"""Who watches the tensors of one model, and the thread that brings them what taps carry out."""

import functools
import operator

from millrace.errors import OptionError
from millrace.options import NO_TAPS, TapRequest
from millrace.taps.delivery import Delivery, TapListener


class Watchers:
    """The listeners of one model, and what each of them wants to see."""

    def __init__(self) -> None:
        self.outfeed = Delivery()
        self._wanted: dict[TapListener, TapRequest] = {}
        self._until_end: list[TapListener] = []  # since the running call began

    @property
    def taps(self) -> TapRequest:
        """Tensors whose statistics somebody wants."""
        wanted = list(self._wanted.values())  # not with NO_TAPS: that is one of every update
        return functools.reduce(operator.or_, wanted) if wanted else NO_TAPS

    def watch(self, listener: TapListener, taps: TapRequest, until_end: bool) -> None:
        """Lets a listener have statistics of tensors, from the next execution on.

        Args:
            listener: who has them, until `unwatch`.
            taps: which tensors.
            until_end: of the running call, so that nothing is left of one that fails.

        Raises:
            OptionError: if it has them already: every number would be counted twice.
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
        """Ends what `watch` began, once all is delivered."""
        try:
            if listener in self._wanted:
                self.outfeed.flush()
        finally:
            self._forget(listener)

    def close(self) -> None:
        """Delivers what there is, and forgets who watches until the end of the running call."""
        try:
            self.outfeed.close()
        finally:
            for listener in self._until_end:
                self._forget(listener)
            self._until_end.clear()

    def _forget(self, listener: TapListener) -> None:
        if self._wanted.pop(listener, None) is not None:
            self.outfeed.listeners.remove(listener)
