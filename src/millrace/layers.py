"""Layers for models that a strategy runs."""

from millrace.api.layers.outfeed_layers import MaybeOutfeed as MaybeOutfeed
from millrace.api.layers.outfeed_layers import Outfeed as Outfeed
from millrace.api.layers.outfeed_layers import outfeed_queues as outfeed_queues
from millrace.api.layers.recomputation import RecomputationCheckpoint as RecomputationCheckpoint
from millrace.api.layers.recomputation import recomputation_checkpoint as recomputation_checkpoint
