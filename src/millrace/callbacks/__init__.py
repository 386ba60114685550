"""Keras callbacks that look into compiled loops."""

from millrace.callbacks.checkpoint import Checkpoint as Checkpoint
from millrace.callbacks.nan_watch import NaNWatch as NaNWatch
from millrace.callbacks.outfeed import OutfeedCallback as OutfeedCallback
from millrace.callbacks.outfeed import OutfeedSummary as OutfeedSummary
from millrace.callbacks.report import Report as Report
from millrace.callbacks.tensor_statistics import TensorStatistics as TensorStatistics
