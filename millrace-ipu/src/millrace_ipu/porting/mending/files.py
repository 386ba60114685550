"""File names as in Keras 2: `save_weights("out/w")`, `model.save("directory")`.

"out/w", "out/w.h5"       weights    -> out/w.weights.h5
"directory", "m.tf"       a model    -> directory.keras
load_weights(name)        the file of that name, if there is one, else the one that it has here
"""

import os
from collections.abc import Callable
from typing import Any

import keras

from millrace_ipu.porting.mending.calls import around, mended_arguments, note

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


class LoadStatus:
    """What `load_weights` returned in Keras 2: its checks are those of `load_weights` itself."""

    def expect_partial(self) -> "LoadStatus":
        """Has no effect."""
        return self

    assert_consumed = assert_existing_objects_matched = assert_nontrivial_match = expect_partial


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


def renamed(old: object, new: str) -> str:
    """Returns the new name of a file, and says it if it is another."""
    if os.fspath(old) != new:  # type: ignore[call-overload]
        note(f"Keras 3 takes no file {str(old)!r}: it is {new!r} here.")
    return new


@around(keras.Model, "save_weights")
def _save_weights(
    original: Callable[..., Any], self: keras.Model, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    args, kwargs = mended_arguments("model.save_weights", args, kwargs)
    path = renamed(filepath, weights_file(filepath))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return original(self, path, *args, **kwargs)


@around(keras.Model, "load_weights")
def _load_weights(
    original: Callable[..., Any], self: keras.Model, filepath: Any, *args: Any, **kwargs: Any
) -> LoadStatus:
    args, kwargs = mended_arguments("model.load_weights", args, kwargs)
    path = filepath if os.path.isfile(filepath) else weights_file(filepath)
    original(self, path, *args, **kwargs)
    return LoadStatus()


@around(keras.models, "save_model")
@around(keras.saving, "save_model")
@around(keras.Model, "save")
def _save(
    original: Callable[..., Any], model: keras.Model, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    args, kwargs = mended_arguments("model.save", args, kwargs)
    path = renamed(filepath, model_file(filepath))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return original(model, path, *args, **kwargs)


@around(keras.models, "load_model")
@around(keras.saving, "load_model")
def _load(original: Callable[..., Any], filepath: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.pop("options", None)
    here = model_file(filepath)
    if here.endswith(".hdf5") and not os.path.isfile(here):
        here = f"{here.removesuffix('.hdf5')}.h5"  # as ModelCheckpoint has written it
    path = here if os.path.isfile(here) and not os.path.isfile(filepath) else filepath
    if os.fspath(path).endswith(_LEGACY) and not args:
        kwargs["custom_objects"] = {**_LOSSES, **(kwargs.get("custom_objects") or {})}
    return original(path, *args, **kwargs)
