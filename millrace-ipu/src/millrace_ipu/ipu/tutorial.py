"""The modules of the tutorial about queues, under their own names: `ipu.outfeed_wrapper`, ...

outfeed_wrapper     MaybeOutfeedQueue(outfeed_mode, filters)   -> millrace.MaybeOutfeedQueue
                        IPUOutfeedMode.ALL, LAST               -> "all", "last"
                        dequeue, maybe_dequeue                 arrays also have .numpy()
outfeed_callback    OutfeedCallback                            -> millrace.callbacks
outfeed_layers      Outfeed, MaybeOutfeed                      -> millrace.layers
outfeed_optimizer   OutfeedOptimizer, OutfeedOptimizerMode     -> millrace.optimizers
"""

import enum
from typing import Any

import millrace
from millrace.callbacks import OutfeedCallback as OutfeedCallback
from millrace.extend import ordered, plain
from millrace.layers import MaybeOutfeed as MaybeOutfeed
from millrace.layers import Outfeed as Outfeed
from millrace.optimizers import OutfeedOptimizer as OutfeedOptimizer
from millrace.optimizers import OutfeedOptimizerMode as OutfeedOptimizerMode
from millrace_ipu.ipu import ipu_outfeed_queue
from millrace_ipu.tensorflow.values import host_array


class MaybeOutfeedQueue(millrace.MaybeOutfeedQueue):
    """Carries the values whose keys pass the filters out of a program, together as one dict.

    Args:
        outfeed_mode: which elements are kept. None keeps all.
        filters: strings; a key passes if it contains one of them. None passes every key.
    """

    def __init__(
        self,
        outfeed_mode: ipu_outfeed_queue.IPUOutfeedMode | str | None = None,
        filters: list[Any] | None = None,
    ):
        mode = outfeed_mode.name if isinstance(outfeed_mode, enum.Enum) else outfeed_mode
        super().__init__(mode or "all", filters)  # type: ignore[arg-type] - it checks the name

    def maybe_enqueue(self) -> bool | None:  # type: ignore[override]
        """Enqueues all values that this trace has kept; returns None without any."""
        return super().maybe_enqueue() or None

    def dequeue(self, wait_for_completion: bool = False) -> Any:
        """Returns all elements since the last call. Read `enqueued` first."""
        return plain(host_array(ordered(super().dequeue(wait_for_completion))))
