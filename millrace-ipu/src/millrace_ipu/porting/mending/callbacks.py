"""Callbacks as in Keras 2: `ModelCheckpoint(monitor="val_dice_accuracy", save_best_only=True)`.

LearningRateScheduler(f)    f may return an array

Without `mode` Keras 2 read from the name whether more is better, where Keras 3 asks the metric, and
raises if the metric is a function.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from millrace_ipu.porting.mending.calls import note, replace_method, signed

# The ends or parts of names of which Keras 2 wanted more.
_PARTS = ("acc",)
_ENDS = ("acc", "accuracy", "auc")


def mend_callbacks() -> None:
    """Lets callbacks take what they took in Keras 2."""
    replace_method(keras.callbacks.EarlyStopping, "on_epoch_end", with_a_mode)
    replace_method(keras.callbacks.LearningRateScheduler, "__init__", _scheduler)


def _scheduler(original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: Any, schedule: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        @functools.wraps(schedule)
        def rate(*values: Any) -> Any:
            value = schedule(*values)
            return float(value) if getattr(value, "shape", None) == () else value

        original(self, rate, *args, **kwargs)

    return make


def mode_of(callback: keras.callbacks.Callback, monitor: str) -> str:
    """Returns what Keras 2 took for `mode="auto"`: `"max"` or `"min"`."""
    if isinstance(callback, keras.callbacks.EarlyStopping):
        return "max" if monitor.endswith(_ENDS) else "min"
    is_more = any(part in monitor for part in _PARTS)
    return "max" if is_more or monitor.startswith("fmeasure") else "min"


def with_a_mode(original: Callable[..., None]) -> Callable[..., None]:
    """Returns `on_epoch_end` of a callback that takes the mode of Keras 2 if Keras 3 has none."""

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        is_undecided = self.mode == "auto" and self.monitor_op is None
        try:
            original(self, epoch, logs)
        except ValueError:
            if not is_undecided or self.monitor_op is not None:
                raise
            self.mode = mode_of(self, self.monitor)
            note(
                f"{type(self).__name__}(monitor={self.monitor!r}) has mode={self.mode!r}, as in "
                "Keras 2. Write the mode."
            )
            original(self, epoch, logs)

    return on_epoch_end
