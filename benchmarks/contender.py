"""One side of `peers.py`: trains, evaluates and predicts on command, in a process of its own.

    parent       tiny fit 32 ->                      check tiny fit 32 ->
    process      <- seconds of an epoch              <- mean loss of an epoch

python contender.py millrace|keras|jax full|small 0

The third word of a command is the side's setting: steps per execution of millrace and Keras on JAX,
"eager" or "compiled" of Keras on torch, "steps" or "scan" of handwritten JAX. A check begins with
weights that are the same for all sides; it comes before any timing, whose batches are shuffled.
Only the side of millrace needs millrace, so that other environments can run this file.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

import models
import workers

SIDE = sys.argv[1] if len(sys.argv) > 1 else ""
MODES = ("fit", "evaluate", "predict")


def cases(small: bool) -> list[models.Case]:
    """Returns all models, with at most 2000 batches each; if `small`, 16."""
    found = (*models.CASES, models.TRANSFORMER)
    most = 16 if small else 2000
    return [replace(case, rows=case.batch * min(case.steps, most)) for case in found]


class Side(Protocol):
    """One model at one setting."""

    def fit(self, shuffle: bool = True) -> float:
        """Trains for an epoch and returns its mean loss."""
        ...

    def evaluate(self) -> float:
        """Returns the mean loss."""
        ...

    def predict(self) -> np.ndarray:
        """Returns the outputs for all rows."""
        ...

    def start_again(self) -> None:
        """Takes the weights with which a check begins."""
        ...


def same_weights(model: keras.Model) -> list[np.ndarray]:
    """Returns weights for a new model, the same in every version and backend of Keras."""
    random = np.random.default_rng(1)
    weights = []
    for value in model.get_weights():
        if np.ptp(value):  # the others are all zeros or all ones
            value = random.standard_normal(value.shape) / np.sqrt(value.size / value.shape[-1])
        weights.append(value.astype("float32"))
    return weights


class WithKeras:
    """A Keras model."""

    def __init__(self, case: models.Case, setting: str):
        options = {"steps_per_execution": int(setting)} if setting.isdigit() else {}
        if setting == "compiled":
            import torch  # the other sides run without

            # Otherwise it compiles the first models only, and not all of their layers.
            torch.compiler.reset()
            torch._dynamo.config.recompile_limit = 64
        self._model = case.model(jit_compile=setting != "eager", **options)
        if SIDE == "millrace":
            import millrace  # the other sides run without

            self._model = millrace.Strategy().attach(self._model)
        self._weights = same_weights(self._model)
        self._x, self._y = case.data()
        self._options = {"batch_size": case.batch, "verbose": 0}

    def start_again(self) -> None:
        """Takes the weights with which a check begins."""
        self._model.set_weights(self._weights)

    def fit(self, shuffle: bool = True) -> float:
        """Trains for an epoch and returns its mean loss."""
        done = self._model.fit(self._x, self._y, shuffle=shuffle, **self._options)
        return float(done.history["loss"][0])

    def evaluate(self) -> float:
        """Returns the mean loss."""
        return float(self._model.evaluate(self._x, self._y, **self._options))

    def predict(self) -> np.ndarray:
        """Returns the outputs for all rows."""
        return self._model.predict(self._x, **self._options)


class Handwritten:
    """The same in JAX, without the loops of Keras: a call for each step, or a scan over all."""

    def __init__(self, case: models.Case, setting: str):
        self._case = case
        self._scans = setting == "scan"
        step, loss = models.handwritten_step(case), models.handwritten_loss(case)

        def evaluate(state: Any, batch: Any) -> Any:
            weights, total, seen = state
            rows = batch[0].shape[0]
            return (weights, total + loss(weights, batch) * rows, seen + rows)

        def predict(weights: Any, batch: Any) -> Any:
            return case.forward(weights, batch[0])

        if self._scans:
            over = lambda function: lambda state, batches: lax.scan(function, state, batches)  # noqa: E731
            self._train = jax.jit(over(lambda s, b: (step(s, b), None)), donate_argnums=0)
            self._evaluate = jax.jit(over(lambda s, b: (evaluate(s, b), None)))
            self._predict = jax.jit(over(lambda s, b: (s, predict(s, b))))
        else:
            self._train = jax.jit(step, donate_argnums=0)
            self._evaluate, self._predict = jax.jit(evaluate), jax.jit(predict)

    def start_again(self) -> None:
        """Takes the weights with which a check begins."""
        model = self._case.model()
        model.set_weights(same_weights(model))
        self._state = models.handwritten_state(self._case, model)

    def fit(self, shuffle: bool = True) -> float:
        """Trains for an epoch and returns its mean loss."""
        order = np.random.permutation(self._case.rows) if shuffle else None
        self._state = self._over_batches(
            self._train, (*self._state[:4], jnp.float32(0), jnp.float32(0)), order
        )
        return float(self._state[4] / self._state[5])

    def evaluate(self) -> float:
        """Returns the mean loss."""
        state = (self._state[0], jnp.float32(0), jnp.float32(0))
        _, total, seen = self._over_batches(self._evaluate, state)
        return float(total / seen)

    def predict(self) -> np.ndarray:
        """Returns the outputs for all rows."""
        if self._scans:
            _, outputs = self._predict(self._state[0], models.stacked(self._case))
            return np.concatenate(np.asarray(outputs))
        outputs = [self._predict(self._state[0], batch) for batch in self._batches()]
        return np.concatenate(jax.device_get(outputs))

    def _over_batches(
        self, function: Callable[[Any, Any], Any], state: Any, order: np.ndarray | None = None
    ) -> Any:
        if self._scans:
            return function(state, models.stacked(self._case, order))[0]
        for batch in self._batches(order):
            state = function(state, batch)
        return state

    def _batches(self, order: np.ndarray | None = None) -> Any:
        case = self._case
        arrays = [a if order is None else a[order] for a in case.data()]
        shapes = [(case.steps, case.batch, *a.shape[1:]) for a in arrays]
        return zip(*(a.reshape(s) for a, s in zip(arrays, shapes, strict=True)), strict=True)


class Commands(dict[str, Callable[[], object]]):
    """The commands of the parent. A side is made when a command first names it."""

    def __init__(self, small: bool):
        super().__init__()
        self._cases = {case.name: case for case in cases(small)}
        self._sides: dict[tuple[str, str], Side] = {}

    def __missing__(self, command: str) -> Callable[[], object]:
        """Returns what a command does."""
        *check, name, mode, setting = command.split()
        if (name, setting) not in self._sides:
            make = Handwritten if SIDE == "jax" else WithKeras
            self._sides[name, setting] = make(self._cases[name], setting)
        side = self._sides[name, setting]
        # The seconds of a pass are wanted, not what it returns.
        timed = getattr(side, mode)
        return functools.partial(_check, side, mode) if check else lambda: timed() is None


def _check(side: Side, mode: str) -> float:
    """Returns a number in which every row counts."""
    side.start_again()
    if mode == "fit":
        return side.fit(shuffle=False)
    if mode == "evaluate":
        return side.evaluate()
    outputs = side.predict()
    return float(np.mean((outputs - np.linspace(0, 1, outputs.size).reshape(outputs.shape)) ** 2))


def about() -> str:
    """Returns versions and threads of this process, beside those of the parent."""
    found = f"keras {keras.__version__}"
    if keras.backend.backend() != "torch":
        return f"{found} on jax {jax.__version__}"
    import torch

    return f"{found} on torch {torch.__version__} with {torch.get_num_threads()} threads"


if __name__ == "__main__":
    workers.serve(Commands(sys.argv[2] == "small"), about())
