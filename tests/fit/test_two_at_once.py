"""Two calls of fit at once in one process: right numbers, or a refusal."""

import threading

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import ModelError

X = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SECONDS = 60.0  # in which a thread must end


def dense(strategy, seed, **compiled):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        layers = [keras.layers.Dense(3), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse", **{"steps_per_execution": 4, **compiled})
    return model


def pipelined(strategy, seed):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        inputs = keras.Input((4,))
        with millrace.PipelineStage(0):
            hidden = keras.layers.Dense(3)(inputs)
        with millrace.PipelineStage(1):
            model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.compile("adam", "mse", steps_per_execution=4)
    return model


def of_one_strategy():
    strategy = millrace.Strategy(devices=1)
    return [dense(strategy, 1), dense(strategy, 2)]


def of_two_strategies():
    return [dense(millrace.Strategy(devices=1), 1), dense(millrace.Strategy(devices=2), 2)]


def of_two_pipelines():
    strategy = millrace.Strategy(devices=2)
    return [pipelined(strategy, 1), pipelined(strategy, 2)]


def of_two_kinds():
    model = dense(millrace.Strategy(devices=1), 1)
    model.set_asynchronous_callbacks(True)
    return [model, pipelined(millrace.Strategy(devices=2), 2)]


def trained(model, barrier=None):
    """Returns the losses and the weights of a model after `fit` with validation."""
    together = (
        []
        if barrier is None
        else [keras.callbacks.LambdaCallback(lambda *_: barrier.wait(SECONDS))]
    )
    data = ((X[k : k + 8], Y[k : k + 8]) for _ in range(2) for k in range(0, 96, 8))
    history = model.fit(
        data,
        steps_per_epoch=12,
        epochs=2,
        validation_data=(X, Y),
        callbacks=together,
        verbose=0,
        shuffle=False,
    )
    return history.history, [*model.predict(X, verbose=0), *model.get_weights()]


def in_threads(*functions):
    """Calls functions, each in a thread; returns their results, or raises one's error."""
    results = [None] * len(functions)

    def run(index, function):
        try:
            results[index] = function()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize(
    "models",
    [
        of_one_strategy,
        pytest.param(of_two_strategies, marks=pytest.mark.slow),
        pytest.param(of_two_pipelines, marks=pytest.mark.slow),
        pytest.param(of_two_kinds, marks=pytest.mark.slow),
    ],
)
def test_two_models_at_once_have_the_numbers_of_one_after_the_other(models):
    expected = [trained(model) for model in models()]
    barrier = threading.Barrier(2)  # both begin each epoch together
    first, second = models()
    results = in_threads(lambda: trained(first, barrier), lambda: trained(second, barrier))
    for (history, values), (expected_history, expected_values) in zip(
        results, expected, strict=True
    ):
        assert history == expected_history
        for value, wanted in zip(values, expected_values, strict=True):
            np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("name", ["fit", "train_on_batch"])
def test_one_model_in_two_threads_is_refused(strategy, name):
    model = dense(strategy, 1)
    refused = []

    class Other(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not refused:
                arguments = (X[:8],) if name == "predict" else (X[:8], Y[:8])
                with pytest.raises(ModelError, match=r"'MainThread'(.|\n)*clone_model") as caught:
                    in_threads(lambda: getattr(model, name)(*arguments))
                refused.append(caught.value)

    history = model.fit(X, Y, verbose=0, shuffle=False, callbacks=[Other()])
    assert len(refused) == 1
    alone = dense(strategy, 1).fit(X, Y, verbose=0, shuffle=False)
    assert history.history == alone.history  # the running fit is not disturbed
    model.evaluate(X, Y, verbose=0)  # and afterwards the model runs anywhere
    in_threads(lambda: model.evaluate(X, Y, verbose=0))


def test_a_callback_of_single_steps_may_use_its_model(strategy):
    model = dense(strategy, 1)
    model.set_asynchronous_callbacks(True)
    seen = []

    class Evaluates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(self.model.evaluate(X, Y, verbose=0))

    model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Evaluates()])
    assert len(seen) == 12
