"""An outfeed queue for values that may be wanted: each has a key, and filters choose by it.

in a layer     queue.maybe_outfeed("Dense_10", x)      kept if a filter takes the key
               queue.maybe_outfeed("Dense_128", y)
in the last    queue.maybe_enqueue()                   all that was kept, as one dict
on the host    queue.dequeue() -> {"Dense_10": [E, ...], "Dense_128": [E, ...]}
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from millrace._compat.jax_tracing import trace_state
from millrace._compat.keras_graph import is_symbolic
from millrace.arguments import checked
from millrace.errors import OptionError
from millrace.taps.outfeed import GIB, OutfeedQueue

Filter = str | re.Pattern[str] | Callable[[str], Any]


class MaybeOutfeedQueue(OutfeedQueue):
    """Carries out of a program those values whose keys are wanted, together as one dict.

    Args:
        mode: `"all"` keeps every element, `"last"` only the newest.
        filters: one filter, or a list of them, of which one must take a key: a string that the key
            contains, a compiled regular expression that is found in it, or a function of the key.
            None takes every key, an empty list takes none.
        max_bytes: how much is kept that nobody reads. Beyond it the oldest elements are dropped.

    Raises:
        OptionError: for something else among the filters, another mode, or a limit below 1.
    """

    @checked
    def __init__(
        self,
        mode: Any = "all",
        filters: Filter | Iterable[Filter] | None = None,
        *,
        max_bytes: int = GIB,
    ):
        super().__init__(mode, max_bytes=max_bytes)
        self._filters = None if filters is None else _as_filters(filters)
        self._pending: dict[str, Any] = {}
        self._trace: Any = None  # that the pending values belong to

    def maybe_outfeed(self, key: str, value: Any) -> None:
        """Keeps `value` for `maybe_enqueue`, if a filter takes its key.

        Args:
            key: tells the values of one program apart; the later of two with one key counts.
            value: an array or a tree of them, in the program that is being traced.
        """
        if is_symbolic() or not self.takes(key):
            return
        trace = trace_state()
        if trace != self._trace:
            # A program may be traced several times, and a trace may end before it has enqueued.
            # Its values are of no use in the next one.
            self._pending, self._trace = {}, trace
        self._pending[key] = value

    def maybe_enqueue(self) -> bool:
        """Enqueues all that this trace has kept, and returns whether there was something.

        Raises:
            TapError: if this program has enqueued already, or is none that a strategy runs.
        """
        pending, self._pending = self._pending, {}
        if is_symbolic() or not pending or trace_state() != self._trace:
            return False
        self.enqueue(pending)
        return True

    def maybe_dequeue(self) -> dict[str, Any] | None:
        """Returns what `dequeue` does; None if no program enqueues."""
        return self.dequeue() if self.enqueued else None

    def takes(self, key: str) -> bool:
        """Whether values with this key are wanted."""
        return self._filters is None or any(_matches(key, one) for one in self._filters)

    def __repr__(self) -> str:
        chosen = "" if self._filters is None else f" filters={self._filters!r}"
        return f"<MaybeOutfeedQueue mode={self.mode.value!r}{chosen} at {id(self):#x}>"


def _as_filters(filters: Any) -> list[Filter]:
    found = list(filters) if isinstance(filters, list | tuple | set | frozenset) else [filters]
    for one in found:
        if not (isinstance(one, str | re.Pattern) or callable(one)):
            raise OptionError(
                "A filter is a string that keys contain, a compiled regular expression, or a "
                f"function of the key. Received: {one!r}. Set filters=None to take all keys."
            )
    return found


def _matches(key: str, one: Filter) -> bool:
    if isinstance(one, str):
        return one in key
    return bool(one.search(key) if isinstance(one, re.Pattern) else one(key))
