"""The tutorial's module `outfeed_wrapper`.

MaybeOutfeedQueue(outfeed_mode, filters)   -> millrace.MaybeOutfeedQueue(mode, filters)
IPUOutfeedMode.ALL, LAST                   -> "all", "last"
dequeue, maybe_dequeue                     -> the same; arrays also have .numpy()
"""

import enum
from typing import Any

from millrace.taps import maybe_outfeed
from millrace.taps.maybe_outfeed import Filter
from millrace.taps.structure import ordered, plain
from millrace.tensorflow.values import host_array


class MaybeOutfeedQueue(maybe_outfeed.MaybeOutfeedQueue):
    """Carries those values out of a program whose keys are wanted, together as one dict.

    Args:
        outfeed_mode: an `IPUOutfeedMode`. None keeps every element.
        filters: strings, of which one must be part of a key. None takes every key.
    """

    def __init__(self, outfeed_mode: Any = None, filters: list[Filter] | None = None):
        mode = outfeed_mode.name if isinstance(outfeed_mode, enum.Enum) else outfeed_mode
        super().__init__("all" if mode is None else mode, filters)

    def maybe_enqueue(self) -> bool | None:  # type: ignore[override]
        """Enqueues all that this trace has kept; returns None if there is nothing."""
        return super().maybe_enqueue() or None

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Returns all since the last time. Ask `enqueued` first."""
        return plain(host_array(ordered(super().dequeue(wait_for_completion))))
