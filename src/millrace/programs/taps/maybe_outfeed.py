"""An outfeed queue with filters, which choose among values by their keys.

in a layer     queue.maybe_outfeed("Dense_10", x)      kept if a filter takes the key
               queue.maybe_outfeed("Dense_128", y)
in the last    queue.maybe_enqueue()                   all values that were kept, as one dict
on the host    queue.dequeue() -> {"Dense_10": [E, ...], "Dense_128": [E, ...]}
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

from millrace._compat.jax_tracing import trace_state
from millrace._compat.keras_graph import is_symbolic
from millrace.base.options import QueueMode
from millrace.base.pytrees import ArrayTree
from millrace.errors import OptionError
from millrace.programs.taps.outfeed_queue import GIB, OutfeedQueue

Filter: TypeAlias = str | re.Pattern[str] | Callable[[str], object]


class MaybeOutfeedQueue(OutfeedQueue):
    """Carries values whose keys pass a filter out of a program, together as one dict.

    Args:
        mode: `"all"` keeps every element, `"last"` only the newest.
        filters: a filter or a list of filters; a key passes if one of them accepts it. A filter is
            a string that the key contains, a compiled regular expression that matches part of it,
            or a function of the key. None accepts every key, an empty list accepts none.
        max_bytes: limit for elements that nobody has read; beyond it the oldest are dropped.

    Raises:
        OptionError: for a filter of another type, an unknown mode, or a limit below 1.
    """

    def __init__(
        self,
        mode: Literal["all", "last"] | QueueMode = "all",
        filters: Filter | Iterable[Filter] | None = None,
        *,
        max_bytes: int = GIB,
    ):
        super().__init__(mode, max_bytes=max_bytes)
        self._filters = None if filters is None else _as_filters(filters)
        self._pending: dict[str, Any] = {}
        self._trace: Any = None  # to which the pending values belong

    def maybe_outfeed(self, key: str, value: ArrayTree) -> None:
        """Keeps `value` for `maybe_enqueue` if its key passes the filters.

        Args:
            key: name of the value within its program; a second value replaces the first.
            value: an array or a tree of arrays, in the program that is being traced.
        """
        if is_symbolic() or not self.takes(key):
            return
        trace = trace_state()
        if trace != self._trace:
            # A program may be traced several times, and a trace may end before it has enqueued.
            # The next trace cannot use its values.
            self._pending, self._trace = {}, trace
        self._pending[key] = value

    def maybe_enqueue(self) -> bool:
        """Enqueues all values that this trace has kept, and returns whether there were any.

        Raises:
            TapError: if this program has enqueued already, or a strategy does not run it.
        """
        pending, self._pending = self._pending, {}
        if is_symbolic() or not pending or trace_state() != self._trace:
            return False
        self.enqueue(pending)
        return True

    def maybe_dequeue(self) -> dict[str, Any] | None:
        """Returns the result of `dequeue`; None if no program enqueues."""
        return self.dequeue() if self.enqueued else None

    def takes(self, key: str) -> bool:
        """Whether values with this key pass the filters."""
        return self._filters is None or any(_accepts(each, key) for each in self._filters)

    def __repr__(self) -> str:
        chosen = "" if self._filters is None else f" filters={self._filters!r}"
        return f"<MaybeOutfeedQueue mode={self.mode.value!r}{chosen} at {id(self):#x}>"


def _as_filters(filters: Filter | Iterable[Filter]) -> list[Filter]:
    every: list[Any] = (
        list(filters) if isinstance(filters, list | tuple | set | frozenset) else [filters]
    )
    for each in every:
        if not (isinstance(each, str | re.Pattern) or callable(each)):
            raise OptionError(
                "A filter is a string that keys contain, a compiled regular expression, or a "
                f"function of the key. Received: {each!r}. Set filters=None to take all keys."
            )
    return every


def _accepts(accepted: Filter, key: str) -> bool:
    if isinstance(accepted, str):
        return accepted in key
    return bool(accepted.search(key) if isinstance(accepted, re.Pattern) else accepted(key))
