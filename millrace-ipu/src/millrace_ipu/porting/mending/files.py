"""File names as in Keras 2: `save_weights("out/w")`, `model.save("directory")`, checkpoints.

"out/w", "out/w.h5"       weights    -> out/w.weights.h5
"directory", "m.tf"       a model    -> directory.keras
load_weights(name)        the file of that name, if there is one, else the one that it has here
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import keras

from millrace.extend import replace
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.mending.callbacks import with_a_mode
from millrace_ipu.porting.mending.calls import mended_arguments, note, replace_method, signed

_WEIGHTS, _MODEL = ".weights.h5", ".keras"
_LEGACY = (".h5", ".hdf5")
# Files of Keras 2 have these names of losses, by which Keras 3 finds none.
_LOSSES = {
    name: getattr(keras.losses, full)
    for name, full in (
        ("mse", "mean_squared_error"),
        ("mae", "mean_absolute_error"),
        ("mape", "mean_absolute_percentage_error"),
        ("msle", "mean_squared_logarithmic_error"),
    )
}
_PERIOD, _EPOCHS = "epochs_between_files", "epochs_since_a_file"


class LoadStatus:
    """What `load_weights` returned in Keras 2: its checks are those of `load_weights` itself."""

    def expect_partial(self) -> "LoadStatus":
        """Has no effect."""
        return self

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = expect_partial


def mend_files() -> None:
    """Lets models be saved and loaded under file names of Keras 2."""
    replace_method(keras.Model, "save_weights", _save_weights)
    replace_method(keras.Model, "load_weights", _load_weights)
    replace_method(keras.Model, "save", functools.partial(_save, 1))
    for module in (keras.models, keras.saving):
        replace(KERAS2_CALLS, functools.partial(_save, 1), module, "save_model")
        replace(KERAS2_CALLS, _load, module, "load_model")
    checkpoint: Any = keras.callbacks.ModelCheckpoint
    replace(KERAS2_CALLS, _checkpoint, checkpoint, "__init__")
    replace_method(checkpoint, "on_epoch_end", lambda o: _at_epoch_end(with_a_mode(o)))


def weights_file(path: object) -> str:
    """Returns the name of the file in which weights that were saved under a name are here."""
    name = os.fspath(path)  # type: ignore[call-overload]
    if name.endswith((_WEIGHTS, ".weights.json")):
        return name
    stem = next((name.removesuffix(each) for each in _LEGACY if name.endswith(each)), name)
    return stem + _WEIGHTS


def model_file(path: object) -> str:
    """Returns the name of the file in which a model that was saved under a name is here."""
    name = os.fspath(path)  # type: ignore[call-overload]
    if name.endswith((_MODEL, *_LEGACY)):
        return name
    return name.rstrip("/").removesuffix(".tf") + _MODEL


def _renamed(old: object, new: str) -> str:
    if os.fspath(old) != new:  # type: ignore[call-overload]
        note(f"Keras 3 takes no file {str(old)!r}: it is {new!r} here.")
    return new


def _save_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    def save_weights(self: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = mended_arguments(".save_weights", args, kwargs)
        path = _renamed(filepath, weights_file(filepath))
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        return original(self, path, *args, **kwargs)

    return save_weights


def _load_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_weights(self: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> LoadStatus:
        args, kwargs = mended_arguments(".load_weights", args, kwargs)
        path = filepath if os.path.isfile(filepath) else weights_file(filepath)
        original(self, path, *args, **kwargs)
        return LoadStatus()

    return load_weights


def _save(position: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def save(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = mended_arguments(".save", args, kwargs)
        path = kwargs.pop("filepath", None)
        path = args[position] if path is None else path
        new = _renamed(path, model_file(path))
        os.makedirs(os.path.dirname(new) or ".", exist_ok=True)
        return original(*args[:position], new, *args[position + 1 :], **kwargs)

    return save


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_model(filepath: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("options", None)
        here = model_file(filepath)
        if here.endswith(".hdf5") and not os.path.isfile(here):
            here = f"{here.removesuffix('.hdf5')}.h5"  # as ModelCheckpoint has written it
        path = here if os.path.isfile(here) and not os.path.isfile(filepath) else filepath
        if os.fspath(path).endswith(_LEGACY) and not args:
            kwargs["custom_objects"] = {**_LOSSES, **(kwargs.get("custom_objects") or {})}
        return original(path, *args, **kwargs)

    return load_model


def _checkpoint(original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = mended_arguments("keras.callbacks.ModelCheckpoint", args, kwargs)
        period = kwargs.pop("period", None)
        weights_only = args[3] if len(args) > 3 else kwargs.get("save_weights_only", False)
        new = weights_file(filepath) if weights_only else model_file(filepath)
        new = f"{new.removesuffix('.hdf5')}.h5" if new.endswith(".hdf5") else new
        original(self, _renamed(filepath, new), *args, **kwargs)
        vars(self)[_PERIOD], vars(self)[_EPOCHS] = period or 1, 0

    return make


def _at_epoch_end(original: Callable[..., None]) -> Callable[..., None]:
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        own = vars(self)
        own[_EPOCHS] = own.get(_EPOCHS, 0) + 1
        if own[_EPOCHS] < own.get(_PERIOD, 1):
            return
        own[_EPOCHS] = 0
        original(self, epoch, logs)

    return on_epoch_end
