"""The setters of the queues around an extended model.

set_infeed_queue_options     -> the same
set_outfeed_queue_options    -> none: results wait for whoever reads them
"""

from dataclasses import replace
from typing import Any

from millrace.arguments import refuse_unknown
from millrace.ipu.keras.extensions.in_force import put, settings_of
from millrace.ipu.keras.extensions.reasons import INFEED_REASONS, OUTFEED_REASONS
from millrace.strategy.controller import Controller


def set_infeed_queue_options(controller: Controller, **kwargs: Any) -> None:
    """Chooses how data reaches the device. Values are checked when fit builds the queue.

    Args:
        controller: of the model whose method this becomes.
        **kwargs: `prefetch_depth`, 1 to 255.

    Raises:
        OptionError: for one that follows from the data.
    """
    taken = [name for name in kwargs if name in INFEED_REASONS]
    refuse_unknown("set_infeed_queue_options", taken, (), INFEED_REASONS)
    put(controller, replace(settings_of(controller), infeed=dict(kwargs)))


def set_outfeed_queue_options(controller: Controller, **kwargs: Any) -> None:
    """Takes options of the queue of results. Values are checked when fit builds the queue.

    Args:
        controller: of the model whose method this becomes.
        **kwargs: `buffer_depth`, from 1 on, which limits nothing here.

    Raises:
        OptionError: for one that does not go with Keras.
    """
    taken = [name for name in kwargs if name in OUTFEED_REASONS]
    refuse_unknown("set_outfeed_queue_options", taken, (), OUTFEED_REASONS)
    put(controller, replace(settings_of(controller), outfeed=dict(kwargs)))
