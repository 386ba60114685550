"""Models as in Keras 2: `fit_generator`, `fit(workers=4)`, `predict_classes`, `reset_states`.

train_on_batch, test_on_batch    the metrics of this batch alone, unless `reset_metrics=False`
labels `(n,)`                    columns `(n, 1)`; one label, and each metric, is for all outputs
predictions `(n, t, 1)`          `(n, t)` in metrics, where the labels have that rank
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from millrace_ipu._compat.keras_models import give_metrics_to_outputs
from millrace_ipu.porting.keras2 import habits_of
from millrace_ipu.porting.mending.calls import added, around, mended_arguments

_ABSENT: Any = object()
_GENERATOR_STEPS = {"fit": "steps_per_epoch", "evaluate": "steps", "predict": "steps"}


def _with_old_arguments(original: Callable[..., Any]) -> inspect.Signature:
    """Returns a signature with the arguments of Keras 2, by which strategies check calls."""
    signature = inspect.signature(original)
    habits = habits_of(f".{original.__name__}")
    old = {habit.argument for habit in habits if habit.mended and habit.argument}
    parameters = [p for p in signature.parameters.values() if p.name not in old]
    only = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(each, only, default=_ABSENT) for each in sorted(old)]
    last = parameters.pop() if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else None
    return signature.replace(parameters=[*parameters, *more, *([last] if last else [])])


@around(keras.Model, "fit", "evaluate", "predict", "compile", sign=_with_old_arguments)
def _run(original: Callable[..., Any], self: keras.Model, *args: Any, **kwargs: Any) -> Any:
    kwargs = {key: value for key, value in kwargs.items() if value is not _ABSENT}
    args, kwargs = mended_arguments(f".{original.__name__}", args, kwargs)
    return original(self, *args, **kwargs)


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


for _name in _GENERATOR_STEPS:
    added(keras.Model, f"{_name}_generator")(_generator(_name))


@around(keras.Model, "train_on_batch", "test_on_batch")
def _of_one_batch(
    original: Callable[..., Any], self: Any, *args: Any, reset_metrics: bool = True, **kwargs: Any
) -> Any:
    if reset_metrics:
        self.reset_metrics()
    return original(self, *args, **kwargs)


@around(keras.Model, "compute_loss", "compute_metrics")
def _of_labels(
    original: Callable[..., Any],
    self: keras.Model,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    *args: Any,
    **named: Any,
) -> Any:
    return original(self, x, *_as_compared(self, y, y_pred), *args, **named)


def _as_compared(self: keras.Model, labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Returns labels, and predictions, in the shapes in which Keras 2 compared them."""
    flat = keras.tree.flatten(predictions)
    if keras.tree.is_nested(predictions):
        if labels is not None and not keras.tree.is_nested(labels):
            labels = keras.tree.map_structure(lambda _: labels, predictions)
        give_metrics_to_outputs(self, predictions)
        # The losses of several outputs are averaged over rows, which a scalar does not have.
        predictions = keras.tree.map_structure(lambda p: _with_axis(p, 0), predictions)
    if not any(np.ndim(each) == 1 for each in flat):  # these are compared with labels as they are
        labels = keras.tree.map_structure(lambda label: _with_axis(label, 1), labels)
    return labels, predictions


def _with_axis(value: Any, rank: int) -> Any:
    has_rank = value is not None and np.ndim(value) == rank
    return keras.ops.expand_dims(value, -1) if has_rank else value


@around(keras.metrics.MeanMetricWrapper, "update_state")
def _of_one_rank(
    original: Callable[..., Any], self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any
) -> Any:
    more = len(np.shape(y_pred)) - len(np.shape(y_true))
    if more == 1 and np.shape(y_pred)[-1] == 1:
        y_pred = keras.ops.squeeze(y_pred, -1)
    elif more == -1 and np.shape(y_true)[-1] == 1:
        y_true = keras.ops.squeeze(y_true, -1)
    return original(self, y_true, y_pred, *args, **kwargs)


@around(keras.losses.Loss, "__init__")
def _make_loss(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    args, kwargs = mended_arguments(f"keras.losses.{type(self).__name__}", args, kwargs)
    original(self, *args, **kwargs)


@added(keras.Model, "predict_classes")
def _classes(self: Any, x: object, batch_size: int | None = None, verbose: int = 0) -> np.ndarray:
    scores = np.asarray(self.predict(x, batch_size=batch_size, verbose=verbose))
    return scores.argmax(-1) if scores.shape[-1] > 1 else (scores > 0.5).astype("int32")


@added(keras.Model, "predict_proba")
def _probabilities(
    self: Any, x: object, batch_size: int | None = None, verbose: int = 0
) -> np.ndarray:
    return self.predict(x, batch_size=batch_size, verbose=verbose)


@added(keras.Model, "reset_states")
def _reset_states(self: keras.Model) -> None:
    for layer in self.layers:
        reset = getattr(layer, "reset_state", None) or getattr(layer, "reset_states", None)
        if callable(reset):
            reset()
