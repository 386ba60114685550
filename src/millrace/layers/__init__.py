"""Layers for models that a strategy runs."""

from millrace.layers.outfeed import MaybeOutfeed as MaybeOutfeed
from millrace.layers.outfeed import Outfeed as Outfeed
from millrace.layers.outfeed import outfeed_queues as outfeed_queues
from millrace.layers.recomputation import RecomputationCheckpoint as RecomputationCheckpoint
from millrace.layers.recomputation import recomputation_checkpoint as recomputation_checkpoint
