"""`millrace.Attached`: the type of an attached model, at run time."""

import keras
import pytest

import millrace
from millrace.errors import ModelError


class Own(keras.Model):
    """A model with a class of its own."""


def models():
    inputs = keras.Input((2,))
    yield keras.Sequential([keras.layers.Dense(1)])
    yield keras.Model(inputs, keras.layers.Dense(1)(inputs))
    yield Own()


def test_a_model_is_attached_from_attach_to_detach(strategy):
    for model in models():
        stock = type(model)
        assert not isinstance(model, millrace.Attached)
        assert strategy.attach(model) is model
        assert isinstance(model, millrace.Attached)
        assert type(model) is stock
        strategy.detach(model)
        assert not isinstance(model, millrace.Attached)


def test_a_model_of_a_scope_is_attached_and_attach_leaves_it_alone(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
    model.set_infeed_queue_options(prefetch_depth=3)
    assert isinstance(model, millrace.Attached)
    assert strategy.attach(model)._millrace.setup.options.feed.prefetch_depth == 3


def test_nothing_else_is_attached():
    for each in (None, 1, keras.layers.Dense(1), Own, millrace.Attached):
        assert not isinstance(each, millrace.Attached)


def test_no_model_is_made_of_it():
    class Derived(millrace.Attached):
        pass

    for each in (millrace.Attached, Derived):
        with pytest.raises(ModelError, match=r"from keras.Model, and call strategy.attach\(model"):
            each()
