"""Callbacks of Keras for what only compiled loops can show."""

from millrace.callbacks.nan_watch import NaNWatch as NaNWatch
from millrace.callbacks.outfeed import OutfeedCallback as OutfeedCallback
from millrace.callbacks.outfeed import OutfeedSummary as OutfeedSummary
from millrace.callbacks.tensor_statistics import TensorStatistics as TensorStatistics
