"""Models as in Keras 2: `fit_generator`, `fit(workers=4)`, `predict_classes`, `reset_states`.

train_on_batch, test_on_batch    the metrics of this batch alone, unless `reset_metrics=False`
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from millrace._compat.patch_table import KERAS2_CALLS
from millrace._compat.patches import add
from millrace.porting.keras2 import habits_of
from millrace.porting.mending.calls import mended_arguments, replace_method, signed

_LOOPS = ("fit", "evaluate", "predict")
_GENERATOR_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}


def mend_models() -> None:
    """Lets models be called as in Keras 2."""
    for name in (*_LOOPS, "compile"):
        replace_method(keras.Model, name, functools.partial(_method, name))
    for name in ("train_on_batch", "test_on_batch"):
        replace_method(keras.Model, name, _of_one_batch)
    replace_method(keras.losses.Loss, "__init__", _loss)
    for name in _LOOPS:
        add(KERAS2_CALLS, keras.Model, f"{name}_generator", _generator(name))
    add(KERAS2_CALLS, keras.Model, "predict_classes", _classes)
    add(KERAS2_CALLS, keras.Model, "predict_proba", _probabilities)
    add(KERAS2_CALLS, keras.Model, "reset_states", _reset_states)


_ABSENT: Any = object()


def _method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        kwargs = {key: value for key, value in kwargs.items() if value is not _ABSENT}
        args, kwargs = mended_arguments(f".{name}", args, kwargs)
        return original(self, *args, **kwargs)

    run.__signature__ = _with_old_arguments(name, original)  # type: ignore[attr-defined]
    return run


def _with_old_arguments(name: str, original: Callable[..., Any]) -> inspect.Signature:
    """Returns a signature with the arguments of Keras 2, by which strategies check calls."""
    signature = inspect.signature(original)
    old = {h.argument for h in habits_of(f".{name}") if h.mended and h.argument}
    parameters = [p for p in signature.parameters.values() if p.name not in old]
    only = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(each, only, default=_ABSENT) for each in sorted(old)]
    last = parameters.pop() if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else None
    return signature.replace(parameters=[*parameters, *added, *([last] if last else [])])


def _generator(name: str) -> Callable[..., Any]:
    """Returns `fit_generator`, `evaluate_generator` or `predict_generator`."""

    def run(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = mended_arguments(f".{name}_generator", args, kwargs)
        if len(args) > 1:  # the number of steps comes second
            kwargs[_GENERATOR_STEPS[name]] = args[1]
        if len(args) > 2 and name == "fit":
            kwargs["epochs"] = args[2]
        if name != "fit":
            kwargs.setdefault("verbose", 0)
        return getattr(self, name)(*args[:1], **kwargs)

    run.__name__ = f"{name}_generator"
    return run


def _of_one_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    parameters = tuple(inspect.signature(original).parameters)

    def run(self: keras.Model, *args: Any, reset_metrics: bool = True, **kwargs: Any) -> Any:
        named = dict(zip(parameters[1:], args, strict=False))
        if reset_metrics:
            self.reset_metrics()
        return original(self, **named, **kwargs)

    return run


def _loss(original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = mended_arguments(f"keras.losses.{type(self).__name__}", args, kwargs)
        original(self, *args, **kwargs)

    return make


def _classes(self: Any, x: object, batch_size: int | None = None, verbose: int = 0) -> np.ndarray:
    scores = np.asarray(self.predict(x, batch_size=batch_size, verbose=verbose))
    return scores.argmax(-1) if scores.shape[-1] > 1 else (scores > 0.5).astype("int32")


def _probabilities(
    self: Any, x: object, batch_size: int | None = None, verbose: int = 0
) -> np.ndarray:
    return self.predict(x, batch_size=batch_size, verbose=verbose)


def _reset_states(self: keras.Model) -> None:
    for layer in self.layers:
        reset = getattr(layer, "reset_state", None) or getattr(layer, "reset_states", None)
        if callable(reset):
            reset()
