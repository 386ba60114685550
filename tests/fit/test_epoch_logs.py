"""The logs of an epoch, which the last step has computed, and Keras computes once more."""

import contextlib

import keras
import numpy as np
import pytest

import millrace

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")
QUIET = {"batch_size": 8, "verbose": 0}
of_executions = pytest.mark.parametrize("steps", [1, 3])


class OwnStep(keras.Sequential):
    """Returns a loss of its own under the name of a metric."""

    def train_step(self, state, data):
        logs, state = super().train_step(state, data)
        return {**logs, "loss": logs["loss"] * 0 + 123.0}, state


def make(in_scope, kind=keras.Sequential, steps=1):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1, cache_dir=None)
    with strategy.scope() if in_scope else contextlib.nullcontext():
        model = kind([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")])
        metrics = ["mse", keras.metrics.AUC(name="auc"), "accuracy"]
        model.compile("sgd", "binary_crossentropy", metrics=metrics, steps_per_execution=steps)
    return model


def assert_same(ours, plain):
    assert list(ours) == list(plain)
    for name in plain:
        np.testing.assert_allclose(ours[name], plain[name], rtol=1e-6, err_msg=name)


@of_executions
def test_histories_are_those_of_keras(steps):
    ours, plain = (
        make(side, steps=steps).fit(X, Y, epochs=3, validation_data=(X[:9], Y[:9]), **QUIET)
        for side in (True, False)
    )
    assert_same(ours.history, plain.history)


@of_executions
def test_evaluations_are_those_of_keras(steps):
    ours, plain = make(True, steps=steps), make(False, steps=steps)
    for part in (slice(0, 24), slice(3, 20)):
        found = [m.evaluate(X[part], Y[part], return_dict=True, **QUIET) for m in (ours, plain)]
        assert_same(*found)


def test_the_metrics_are_not_read_again(monkeypatch):
    model, reads, result = make(True), [], keras.metrics.Mean.result
    model.fit(X, Y, **QUIET)  # traces the step, which reads them

    def counted(metric):
        reads.append(metric.name)
        return result(metric)

    monkeypatch.setattr(keras.metrics.Mean, "result", counted)
    model.fit(X, Y, epochs=3, **QUIET)
    assert reads == []


def test_a_callback_may_change_the_metrics():
    class Resets(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.reset_metrics()

    ours, plain = (
        make(side).fit(X, Y, epochs=2, callbacks=[Resets()], **QUIET) for side in (True, False)
    )
    assert plain.history["loss"] == [0.0, 0.0]
    assert_same(ours.history, plain.history)


def test_a_step_of_the_user_reports_what_keras_reports():
    ours, plain = (make(side, OwnStep).fit(X, Y, epochs=2, **QUIET) for side in (True, False))
    assert 123.0 not in plain.history["loss"]
    assert_same(ours.history, plain.history)
