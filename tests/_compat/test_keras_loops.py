"""Whose loop asks for an iterator, however loops are nested."""

import threading

import keras
import numpy as np
import pytest

from millrace._compat import keras_loops, patches
from millrace._compat.keras_loops import asks_for_nothing, let_loops_ask, set_epoch_iterators
from millrace._compat.patch_table import EPOCH_ITERATOR
from millrace.run.fit.epochs import make_epoch_iterator

trainer = EPOCH_ITERATOR.owner()
X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")


def plain(name):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name=name)
    model.compile("sgd", "mse", run_eagerly=True)
    return model


@pytest.fixture
def asked():
    """Who asks for iterators: pairs of a model's name and a loop, in order."""
    found = []

    def make(model, loop, arguments):
        found.append((model.name, loop, arguments["batch_size"]))

    with patches.held():
        let_loops_ask()
        set_epoch_iterators(make)
        yield found
        set_epoch_iterators(make_epoch_iterator)


class Also(keras.callbacks.Callback):
    def __init__(self, **calls):
        super().__init__()
        self.calls = calls

    def on_train_batch_end(self, batch, logs=None):
        self.calls.get("train", lambda: None)()

    def on_epoch_end(self, epoch, logs=None):
        self.calls.get("epoch", lambda: None)()

    def on_test_batch_end(self, batch, logs=None):
        self.calls.get("test", lambda: None)()


def test_each_loop_of_one_model(asked):
    model = plain("a")
    model.fit(X, Y, batch_size=4, verbose=0)
    model.evaluate(X, Y, batch_size=4, verbose=0)
    model.predict(X, batch_size=4, verbose=0)
    assert asked == [("a", "train", 4), ("a", "test", 4), ("a", "predict", 4)]


def test_validation_data_of_fit_are_for_testing_and_asked_for_once(asked):
    data = {"validation_data": (X, Y), "validation_batch_size": 2, "epochs": 2}
    plain("a").fit(X, Y, batch_size=4, verbose=0, **data)
    assert asked == [("a", "train", 4), ("a", "test", 2)]


def test_a_callback_that_runs_another_model_and_the_same_one(asked):
    model, other = plain("a"), plain("b")

    def run():
        other.fit(X, Y, batch_size=1, steps_per_epoch=1, verbose=0)
        other.evaluate(X, Y, batch_size=2, steps=1, verbose=0)

    def run_same():
        model.predict(X, batch_size=3, verbose=0)
        model.evaluate(X, Y, batch_size=1, steps=1, verbose=0)

    also = Also(train=run, epoch=run_same)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[also], validation_data=(X, Y))
    assert asked == [
        ("a", "train", 4),
        ("b", "train", 1),
        ("b", "test", 2),
        ("a", "test", 4),
        ("a", "predict", 3),
        ("a", "test", 1),
    ]


def test_a_fit_of_another_model_while_one_is_validated(asked):
    other = plain("b")
    also = Also(test=lambda: other.fit(X, Y, batch_size=2, steps_per_epoch=1, verbose=0))
    plain("a").fit(X, Y, batch_size=4, verbose=0, callbacks=[also], validation_data=(X, Y))
    assert asked == [("a", "train", 4), ("a", "test", 4), ("b", "train", 2)]


def test_a_fit_of_the_users_own_that_predicts_first(asked):
    encoder = plain("encoder")

    class Own(keras.Sequential):
        def fit(self, x, y, **options):
            return super().fit(encoder.predict(x, batch_size=1, verbose=0), y, **options)

    model = Own([keras.Input((1,)), keras.layers.Dense(1)], name="own")
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert asked == [("encoder", "predict", 1), ("own", "train", 4)]


def test_threads_do_not_see_each_other(asked):
    other = plain("b")

    def run():
        thread = threading.Thread(target=other.predict, args=(X,), kwargs={"verbose": 0})
        thread.start()
        thread.join()
        assert asks_for_nothing(other, "predict") is False

    plain("a").fit(X, Y, batch_size=4, verbose=0, callbacks=[Also(train=run)])
    assert asked == [("a", "train", 4), ("b", "predict", None)]


def test_a_loop_that_fails_is_over(asked):
    model = plain("a")
    with pytest.raises(ValueError, match="cardinality"):
        model.fit(X, Y[:3], verbose=0)
    assert keras_loops._innermost.get() is None
    trainer.JAXEpochIterator(x=X, y=Y)  # nobody's
    assert asked == [("a", "train", None)]


def test_iterators_of_an_unknown_kind_are_noticed(asked, monkeypatch):
    model = plain("a")
    stock = patches.unpatched(trainer.JAXEpochIterator)
    found = []
    also = Also(train=lambda: found.append(asks_for_nothing(model, "train")))
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[also])
    monkeypatch.setattr(trainer, "JAXEpochIterator", stock)  # as if Keras looked elsewhere
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[also])
    assert found == [False, True]
