"""What an extended model's fit, evaluate and predict do around Keras's own.

data of Python code              -> refused, before Keras draws from it
set_asynchronous_callbacks       -> off in fit and evaluate where accumulate_outfeed is on
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.ipu.keras.extensions.data_checks import check_source
from millrace.ipu.keras.extensions.in_force import settings_of
from millrace.strategy.controller import Controller
from millrace.tensorflow.iterators import device_iterators

logger = logging.getLogger("millrace")

LOOPS = ("fit", "evaluate", "predict")


def around(name: str, loop: Callable[..., Any], controller: Controller) -> Callable[..., Any]:
    """Returns `fit`, `evaluate` or `predict` of an extended model.

    Args:
        name: of the loop.
        loop: the attached model's.
        controller: of the model.
    """

    @functools.wraps(loop)
    def run(x: Any = None, *args: Any, **kwargs: Any) -> Any:
        check_source(x)
        validation = kwargs.get("validation_data")
        check_source(validation[0] if isinstance(validation, tuple) else validation)
        if name == "fit":
            epochs = kwargs.get("epochs", args[2] if len(args) > 2 else 1)
            begun = kwargs.get("initial_epoch", 0)
            controller.rules.epochs = max(epochs - begun, 1)  # type: ignore[attr-defined]
        if not _is_ignored(name, controller):
            with device_iterators(False):  # Keras reads data sets in Python
                return loop(x, *args, **kwargs)
        before = controller.options
        controller.replace_options(replace(before, asynchronous_callbacks=False), True)
        try:
            with device_iterators(False):
                return loop(x, *args, **kwargs)
        finally:
            controller.replace_options(
                replace(controller.options, asynchronous_callbacks=True), True
            )

    return run


def _is_ignored(name: str, controller: Controller) -> bool:
    settings, options = settings_of(controller), controller.options
    if not options.asynchronous_callbacks or not settings.accumulate_outfeed or name == "predict":
        return False
    if controller.stages.assignment() is None:
        return False
    if not controller.is_running:
        logger.info(
            "accumulate_outfeed=True delivers the logs of %r once per update, so %s calls no "
            "callbacks in between: set_asynchronous_callbacks(True) is ignored there.",
            controller.model.name,
            name,
        )
    return True
