"""Keras callbacks that look into compiled loops."""

from millrace.api.callbacks.batch_outputs import BatchOutputs as BatchOutputs
from millrace.api.callbacks.checkpoint import Checkpoint as Checkpoint
from millrace.api.callbacks.nan_watch import NaNWatch as NaNWatch
from millrace.api.callbacks.outfeed_callback import OutfeedCallback as OutfeedCallback
from millrace.api.callbacks.outfeed_callback import OutfeedSummary as OutfeedSummary
from millrace.api.callbacks.report import Report as Report
from millrace.api.callbacks.tensor_statistics import TensorStatistics as TensorStatistics
