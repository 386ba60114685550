"""Runs loops of plain Keras and of millrace, and notes what a user sees of them.

    run("fit", source, PLAIN, epochs=3)        -> Seen of plain Keras
    run("fit", source, Way(5), epochs=3)       -> Seen of millrace with five steps per execution

`source()` makes the data anew: a data set, or the arguments of the loop. Models are made once for
each `Way` and start every run from the same weights.
"""

import contextlib
import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

import millrace

OUT_OF_DATA = "Your input ran out of data"
_NUMBERED = ("epoch", "train_batch", "test_batch", "predict_batch")
_TIMES = re.compile(r"\d+m?u?s(/step|/epoch)?|\d+:\d+")


@dataclass(frozen=True)
class Way:
    """How a model runs: steps of an execution, devices, and what is set on the model."""

    steps: int = 1
    devices: Any = 1
    setting: Callable[[Any], None] | None = None
    rate: float = 0.05


PLAIN = Way(devices=None)


@dataclass
class Seen:
    """What a user sees of one loop."""

    result: Any = None  # of the loop: History's dict, logs or predictions
    calls: list[tuple[str, Any, dict[str, float]]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    model: Any = None
    data: Any = None
    updates: int = 0  # of the weights, in the loop

    def of(self, *names: str) -> list[tuple[str, Any, dict[str, float]]]:
        """Returns the calls of these names."""
        return [call for call in self.calls if call[0] in names]

    @property
    def out_of_data(self) -> int:
        """How often Keras warned that the data ran out."""
        return sum(text.startswith(OUT_OF_DATA) for text in self.warnings)


class Recorder(keras.callbacks.Callback):
    """Notes every call of a callback, and the numbers in its logs."""

    def __init__(self, calls: list[Any]):
        super().__init__()
        self._calls = calls

    def note(self, name: str, number: Any, logs: Any) -> None:
        numbers = {k: float(v) for k, v in (logs or {}).items() if k != "outputs"}
        self._calls.append((name, number, numbers))


def _method(name: str) -> Callable[..., None]:
    if name.startswith(_NUMBERED):
        return lambda self, number, logs=None: self.note(name, number, logs)
    return lambda self, logs=None: self.note(name, None, logs)


for _what in (*_NUMBERED, "train", "test", "predict"):
    for _when in ("begin", "end"):
        setattr(Recorder, f"on_{_what}_{_when}", _method(f"{_what}_{_when}"))


@functools.cache
def _model(way: Way) -> tuple[Any, list[np.ndarray]]:
    keras.utils.set_random_seed(1)
    strategy = None if way.devices is None else millrace.Strategy(devices=way.devices)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers])
    if way.setting is not None:
        way.setting(model)
    model.compile(keras.optimizers.SGD(way.rate), "mse", steps_per_execution=way.steps)
    return model, model.get_weights()


def run(loop: str, source: Callable[[], Any], way: Way = PLAIN, **arguments: Any) -> Seen:
    """Runs `fit`, `evaluate` or `predict`, and lets its errors out."""
    model, weights = _model(way)
    model.set_weights(weights)
    model.optimizer.iterations.assign(0)
    model.optimizer.learning_rate.assign(way.rate)
    model.stop_training = False
    seen = Seen(model=model, data=source())
    data = seen.data if isinstance(seen.data, dict) else {"x": seen.data}
    if loop == "evaluate":
        arguments["return_dict"] = True
    if loop == "fit":
        arguments.setdefault("shuffle", False)
    if loop == "predict":
        data = {"x": data["x"]}
    callbacks = [*arguments.pop("callbacks", ()), Recorder(seen.calls)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = getattr(model, loop)(**data, **{"verbose": 0, **arguments}, callbacks=callbacks)
    seen.updates = int(model.optimizer.iterations)
    seen.warnings = [str(warning.message) for warning in caught]
    seen.result = result.history if loop == "fit" else result
    return seen


def printed(text: str) -> list[str]:
    """Returns lines that a progress bar printed, without times."""
    return [" ".join(_TIMES.sub("", line).split()) for line in text.splitlines()]
