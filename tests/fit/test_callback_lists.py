"""Loops whose callbacks look at no batch, of which nothing is handed to another thread."""

import contextlib
import functools
import inspect
import threading

import keras
import numpy as np
import pytest

import millrace

ROWS = 3 * 8
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
QUIET = {"batch_size": 8, "verbose": 0}


def make(in_scope=True):
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1, cache_dir=None)
    with strategy.scope() if in_scope else contextlib.nullcontext():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


@pytest.fixture
def threads(monkeypatch):
    """The names of the threads that start."""
    names, start = [], threading.Thread.start

    def noted(thread):
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    return names


class Epochs(keras.callbacks.Callback):
    """Notes the parameters when a loop begins, and the ends of its epochs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_begin(self, logs=None):
        self.seen.append(dict(self.params))

    on_test_begin = on_predict_begin = on_train_begin

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, logs["loss"]))


class Batches(Epochs):
    """Notes the batches, too."""

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("batch", batch, logs["loss"]))


LOOPS = {
    "fit": lambda model, **given: model.fit(X, Y, epochs=2, **QUIET, **given),
    "validated": lambda model, **given: model.fit(
        X, Y, epochs=2, validation_data=(X[:9], Y[:9]), **QUIET, **given
    ),
    "evaluate": lambda model, **given: model.evaluate(X, Y, **QUIET, **given),
    "predict": lambda model, **given: model.predict(X, **QUIET, **given),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_no_thread_gets_batches_for_nobody(loop, threads):
    model = make()
    loop(model, callbacks=[Epochs()])
    assert not [name for name in threads if name.startswith("ThreadPoolExecutor")]


@pytest.mark.parametrize("kind", [Epochs, Batches])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_callbacks_see_what_keras_shows_them(loop, kind):
    def seen(in_scope):
        callback = kind()
        loop(make(in_scope), callbacks=[callback])
        return callback.seen

    ours, plain = seen(in_scope=True), seen(in_scope=False)
    assert [each for each in ours if isinstance(each, dict)] == [
        each for each in plain if isinstance(each, dict)
    ]
    numbers = [[each for each in run if not isinstance(each, dict)] for run in (ours, plain)]
    assert [each[:-1] for each in numbers[0]] == [each[:-1] for each in numbers[1]]
    np.testing.assert_allclose(
        [each[-1] for each in numbers[0]], [each[-1] for each in numbers[1]], rtol=1e-6
    )


def test_a_loop_without_callbacks_has_the_history_of_keras():
    ours, plain = (LOOPS["validated"](make(in_scope)) for in_scope in (True, False))
    assert ours.params == plain.params
    assert ours.epoch == plain.epoch
    assert list(ours.history) == list(plain.history)


def test_a_hook_that_is_an_attribute_is_called():
    ends = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(batch)
    )
    make().fit(X, Y, callbacks=[callback], **QUIET)
    assert ends == [0, 1, 2]


def test_a_list_of_the_user_is_the_one_that_is_called():
    class OwnList(keras.callbacks.CallbackList):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(batch)

    ends, model = [], make()
    model.fit(X, Y, callbacks=OwnList([], model=model, add_history=True), **QUIET)
    assert ends == [0, 1, 2]


def test_a_model_that_is_not_built_yet_is_built_when_callbacks_get_it():
    built = []

    class Looks(keras.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            built.append(model.built)

    with millrace.Strategy(devices=1, cache_dir=None).scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X, Y, callbacks=[Looks()], **QUIET)
    assert built == [True]


def test_a_patched_fit_gets_the_callbacks_of_the_user(monkeypatch):
    stock, given = keras.Model.fit, []

    @functools.wraps(stock)
    def fit(self, *args, **kwargs):  # as loggers of experiments do
        given.append(inspect.signature(stock).bind(self, *args, **kwargs).arguments["callbacks"])
        return stock(self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", fit)
    make().fit(X, Y, **QUIET)
    assert given == [None]


def test_asynchronous_callbacks_know_the_steps_of_an_epoch():
    model, callback = make(), Epochs()
    model.set_asynchronous_callbacks(True)
    model.fit(X, Y, callbacks=[callback], **QUIET)
    assert callback.seen[0]["steps"] == 3
