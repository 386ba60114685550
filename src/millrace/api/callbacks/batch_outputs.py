"""The callback that takes the outputs of `predict` batch by batch, so that nothing is gathered."""

from collections.abc import Callable, Mapping
from typing import Any

import keras

from millrace.errors import ModelError, OptionError
from millrace.run.fit.controller import controller_of


class BatchOutputs(keras.callbacks.Callback):
    """Calls a function with the outputs of every batch of `predict`, which then gathers none.

        model.predict(x, callbacks=[millrace.callbacks.BatchOutputs(write)])

    Batches come in order, in the thread that calls `predict`, however many steps an execution has.
    The memory of the host holds the outputs of two executions, and `predict` returns outputs of no
    row. To end early set `model.stop_predicting = True`, or raise an exception.
    """

    takes_outputs = True  # read in run/fit/callbacks.py

    def __init__(self, function: Callable[[Any], object]):
        """Chooses the function.

        Args:
            function: of the outputs of a batch: NumPy arrays, in the structure that the model
                returns.

        Raises:
            OptionError: if it is no function.
            ModelError: when `predict` begins, if the model belongs to no strategy.
        """
        super().__init__()
        if not callable(function):
            raise OptionError(
                "BatchOutputs takes a function of the outputs of a batch. Received: "
                f"{function!r}. Pass one, such as BatchOutputs(print)."
            )
        self._function = function

    def on_predict_begin(self, logs: Mapping[str, object] | None = None) -> None:
        """Checks that the model belongs to a strategy, since plain Keras gathers all outputs."""
        model: Any = self.model
        if controller_of(model) is None:
            raise ModelError(
                f"BatchOutputs needs a model of a strategy, and {model.name!r} belongs to "
                "none: plain Keras gathers all outputs. Build it in strategy.scope(), or call "
                "strategy.attach(model)."
            )

    def on_predict_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Passes on the outputs of a batch."""
        self._function((logs or {})["outputs"])
