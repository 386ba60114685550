"""The tutorial's module `outfeed_layers`.

Outfeed(outfeed_queue)                             -> millrace.layers.Outfeed
MaybeOutfeed(maybe_outfeed_queue, final_outfeed)   -> millrace.layers.MaybeOutfeed
"""

from millrace.layers import MaybeOutfeed as MaybeOutfeed
from millrace.layers import Outfeed as Outfeed
