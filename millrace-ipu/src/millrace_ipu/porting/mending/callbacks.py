"""Callbacks as in Keras 2: `ModelCheckpoint(monitor="val_dice_accuracy", save_best_only=True)`.

LearningRateScheduler(f)                f may return an array
ModelCheckpoint("w-{epoch}", period=2)  a file every two epochs, under a name that Keras 3 takes

Without `mode` Keras 2 read from the name whether more is better, where Keras 3 asks the metric, and
raises if the metric is a function.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras

from millrace_ipu.porting.mending.calls import around, mended_arguments, note
from millrace_ipu.porting.mending.files import model_file, renamed, weights_file

_PERIOD, _EPOCHS = "epochs_between_files", "epochs_since_a_file"


@around(keras.callbacks.LearningRateScheduler, "__init__")
def _scheduler(
    original: Callable[..., None],
    self: Any,
    schedule: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> None:
    @functools.wraps(schedule)
    def rate(*values: Any) -> Any:
        value = schedule(*values)
        return float(value) if getattr(value, "shape", None) == () else value

    original(self, rate, *args, **kwargs)


@around(keras.callbacks.EarlyStopping, "on_epoch_end")
def _with_a_mode(original: Callable[..., None], self: Any, epoch: int, logs: Any = None) -> None:
    """Takes the mode of Keras 2 if Keras 3 has none."""
    is_undecided = self.mode == "auto" and self.monitor_op is None
    try:
        original(self, epoch, logs)
    except ValueError:
        if not is_undecided or self.monitor_op is not None:
            raise
        self.mode = _mode_of(self, self.monitor)
        note(
            f"{type(self).__name__}(monitor={self.monitor!r}) has mode={self.mode!r}, as in "
            "Keras 2. Write the mode."
        )
        original(self, epoch, logs)


def _mode_of(callback: keras.callbacks.Callback, monitor: str) -> str:
    """Returns what Keras 2 took for `mode="auto"`: `"max"` or `"min"`."""
    if isinstance(callback, keras.callbacks.EarlyStopping):
        is_more = monitor.endswith(("acc", "accuracy", "auc"))
    else:
        is_more = "acc" in monitor or monitor.startswith("fmeasure")
    return "max" if is_more else "min"


@around(keras.callbacks.ModelCheckpoint, "__init__")
def _checkpoint(
    original: Callable[..., None], self: Any, filepath: Any, *args: Any, **kwargs: Any
) -> None:
    args, kwargs = mended_arguments("keras.callbacks.ModelCheckpoint", args, kwargs)
    period = kwargs.pop("period", None)
    weights_only = args[3] if len(args) > 3 else kwargs.get("save_weights_only", False)
    new = weights_file(filepath) if weights_only else model_file(filepath)
    new = f"{new.removesuffix('.hdf5')}.h5" if new.endswith(".hdf5") else new
    original(self, renamed(filepath, new), *args, **kwargs)
    vars(self)[_PERIOD], vars(self)[_EPOCHS] = period or 1, 0


@around(keras.callbacks.ModelCheckpoint, "on_epoch_end")
def _at_epoch_end(original: Callable[..., None], self: Any, epoch: int, logs: Any = None) -> None:
    own = vars(self)
    own[_EPOCHS] = own.get(_EPOCHS, 0) + 1
    if own[_EPOCHS] >= own.get(_PERIOD, 1):
        own[_EPOCHS] = 0
        _with_a_mode(original, self, epoch, logs)
