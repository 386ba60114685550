"""The logs of epochs, read where Keras puts them: in the `History` of the running fit.

Keras converts the logs of an epoch for its `History` callback, which is part of every fit. They are
read from there afterwards, so no callback is added, and nothing waits for a device.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import keras
import numpy as np

from millrace.base.records.loops import EpochRecord


class EpochHistory:
    """The epochs of a fit that have ended since they were last read."""

    def __init__(self, model: keras.Model, loop: int, process: int):
        """Begins a fit.

        Args:
            model: that is about to be trained.
            loop: number of the fit.
            process: number of this process.
        """
        self._model: Any = model
        self._loop, self._process = loop, process
        # Of the fit before, if any: Keras starts another list when training begins.
        self._before = self._epochs()
        self.count = 0  # epochs that were read
        self._lengths: dict[str, int] = {}  # of the lists of logs, likewise

    def _epochs(self) -> Sequence[int] | None:
        return getattr(getattr(self._model, "history", None), "epoch", None)

    def ended(self, time: float) -> Iterator[EpochRecord]:
        """Yields the records of epochs that have ended since the last call.

        Args:
            time: of their end, in seconds since 1970.
        """
        epochs = self._epochs()
        if epochs is None or epochs is self._before or len(epochs) <= self.count:
            return
        history = cast(dict[str, list[Any]], self._model.history.history)
        new = epochs[self.count :]
        logs: list[dict[str, float]] = [{} for _ in new]
        for name, values in history.items():
            begin = self._lengths.get(name, 0)
            if not self.count and name not in self._lengths:
                begin = max(len(values) - len(epochs), 0)  # of fits before, with the same History
            self._lengths[name] = len(values)
            # Fewer than epochs where validation is rare: they are of the last ones.
            for epoch_logs, value in zip(reversed(logs), reversed(values[begin:]), strict=False):
                epoch_logs.update(_numbers(name, value))
        self.count = len(epochs)
        for epoch, epoch_logs in zip(new, logs, strict=True):
            yield EpochRecord(
                loop=self._loop,
                process=self._process,
                epoch=int(epoch) + 1,
                ended=time,
                logs=epoch_logs,
            )


def _numbers(name: str, value: object) -> Mapping[str, float]:
    """Returns a log as numbers: several where replicas report their own."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):  # text, say, of a callback
        return {}
    if array.ndim == 0:
        return {name: float(array)}
    return {f"{name}/{index}": float(each) for index, each in enumerate(array.ravel()[:_MOST])}


_MOST = 16  # numbers of one log
