"""Gradients that are used once they are there change no number: updates, sums of micro-batches."""

import cases
import keras
import numpy as np
import pytest
from keras import layers, ops

import millrace
from millrace.programs.plan import Recompute
from millrace.run.fit import functions


class DividedByTheNorm(keras.optimizers.SGD):
    """Divides every gradient by the norm of all, so that no update can come early."""

    def apply(self, grads, trainable_variables=None):
        norm = sum(ops.sum(ops.square(gradient)) for gradient in grads) ** 0.5
        super().apply([gradient / (1 + norm) for gradient in grads], trainable_variables)


class AfterTheOneBefore(keras.optimizers.SGD):
    """Adds to each gradient the mean of the weight that was updated before it."""

    def apply(self, grads, trainable_variables=None):
        mean = 0.0
        for gradient, variable in zip(grads, self._trainable_variables, strict=True):
            self.update_step(gradient + 0.01 * mean, variable, self.learning_rate)
            mean = ops.mean(variable)
        self._iterations.assign_add(1)


@pytest.fixture
def least_memory(monkeypatch):
    """Lets training make the choice that takes the least memory."""
    monkeypatch.setattr(functions, "recompute_of", lambda *given: Recompute(choice=1000))


QUICK = {"amsgrad", "global-clipnorm", "loss-scaling"}
SLOW = {
    "adamw", "bfloat16-normalized", "clipnorm", "cosine", "ema", "ema-overwrite",
    "float16-overflows", "lion", "loss-scale-factor", "nesterov", "own-accumulation", "rmsprop",
}  # fmt: skip
OPTIMIZERS = [case for case in cases.OPTIONS if case.name in QUICK | SLOW]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.name in SLOW else [])
        for case in OPTIMIZERS
    ],
)
def test_optimizers_of_keras(strategy, least_memory, case):
    cases.assert_same(cases.train(case, strategy, 3), cases.train(case), case.tolerance)


@pytest.mark.parametrize("optimizer", [DividedByTheNorm, AfterTheOneBefore])
def test_optimizers_whose_updates_depend_on_one_another(strategy, least_memory, optimizer):
    case = cases.Case("own", compile=cases.binary(optimizer=lambda: optimizer(0.1)))
    cases.assert_same(cases.train(case, strategy, 3), cases.train(case))


X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")


def network():
    """Weights of 1.9 MB, no layer with more than a seventh; activations of next to nothing."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,))
    shared = layers.Dense(256, "tanh")
    x = shared(layers.Dense(256, "gelu")(inputs))
    for _ in range(6):
        x = layers.Dense(256, "tanh")(x)
    frozen = layers.Dense(8, trainable=False)
    return keras.Model(inputs, layers.Dense(1)(layers.concatenate([frozen(x), shared(x)])))


def losses_of(model, rows, steps=1):
    model.compile(keras.optimizers.Adam(1e-3), "mse", steps_per_execution=steps)
    history = model.fit(X, X[:, :1], batch_size=rows, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"]


@pytest.mark.shipped_compiler
@pytest.mark.parametrize(
    ("rows", "accumulation", "most"),
    [
        pytest.param(16, {}, 0.5, id="updates", marks=pytest.mark.slow),
        pytest.param(4, {"gradient_accumulation_steps_per_replica": 4}, 0.5, id="micro-batches"),
        # Of which the sums are one whole.
        pytest.param(16, {"micro_batch": 6}, 1.5, id="parts", marks=pytest.mark.slow),
    ],
)
def test_gradients_do_not_wait_for_the_last(least_memory, rows, accumulation, most):
    plain = network()
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = network()
    if accumulation:
        model.set_gradient_accumulation_options(**accumulation)
    model.set_recomputation_options()
    found = losses_of(model, rows, 4)
    np.testing.assert_allclose(found, losses_of(plain, 16), rtol=1e-6)
    for value, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    (stage,) = strategy.memory_report(model, (X[:rows], X[:rows, :1])).devices[0].stages
    weights = sum(value.nbytes for value in model.get_weights())
    assert stage.temporaries < most * weights
