import logging
import re

import keras
import numpy as np
import pytest
from linear_models import linear, rows

from millrace.errors import DataError
from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.ipu_strategy import IPUStrategy

X, Y = np.ones((10, 1), "float32"), np.ones((10, 1), "float32")


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return X[:4], Y[:4]


def batches(number, size=2):
    data = tf.data.Dataset.from_tensor_slices(rows(number * size))
    return data.batch(size, drop_remainder=True)


@pytest.fixture
def model():
    strategy = IPUStrategy()
    model = linear(strategy)
    model.strategy_of_test = strategy
    return model


def refused(model, *args, match, loop="fit", **kwargs):
    with pytest.raises(DataError, match=match):
        getattr(model, loop)(*args, verbose=0, **kwargs)
    assert not model.strategy_of_test.compile_log  # nothing was


def test_f10_generators_and_loaders(model):
    refused(model, ((X, Y) for _ in range(2)), match="is a generator.*from_generator")
    refused(model, Batches(), match="is a Batches.*from_generator")
    refused(model, iter([(X, Y)]), match="def generator.*from_generator")
    refused(model, X[:4], Y[:4], validation_data=Batches(), match="is a Batches")


@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict"])
def test_f10_a_partial_batch(model, loop):
    data = (X,) if loop == "predict" else (X, Y)
    message = "10 rows, .* batch_size=4: the last one would have 2"
    refused(model, *data, batch_size=4, loop=loop, match=message)


def test_f10_an_unknown_shape(model):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    refused(model, data, match=r"shape .*None.*drop_remainder=True")


def test_f10_an_unknown_number_of_batches(model):
    refused(model, batches(2).repeat(), match="number of batches.*is unknown.*Set steps_per_epoch")
    refused(
        model,
        batches(2).repeat(),
        loop="predict",
        match="number of batches.*is unknown.*Set steps, or",
    )


def test_f10_a_data_set_that_is_too_short(model):
    refused(
        model,
        batches(10),
        epochs=3,
        steps_per_epoch=4,
        match=r"has 10 batches, and 3 epochs of steps_per_epoch=4 need 12. Append repeat\(\)",
    )
    refused(model, batches(3), loop="evaluate", steps=4, match="has 3 batches.*steps=4 need 4")


def test_f10_an_epoch_must_be_a_whole_number_of_executions():
    strategy = IPUStrategy()
    model = linear(strategy, steps_per_execution=4)
    with pytest.raises(ValueError, match=r"has 10 steps.* steps_per_execution=4 of.* to 2 or 5"):
        model.fit(batches(10), verbose=0)
    assert not strategy.compile_log


def test_f10_one_iterator_goes_on_over_epochs(model):
    seen = []
    data = tf.data.Dataset.from_tensor_slices(
        (np.arange(8, dtype="float32")[:, None], np.zeros((8, 1), "float32"))
    ).batch(1, drop_remainder=True)
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs))
    model.optimizer.learning_rate = 0.0
    model.fit(data, epochs=2, steps_per_epoch=4, callbacks=[watch], verbose=0)
    losses = [np.mean((0.5 * np.arange(4)) ** 2), np.mean((0.5 * np.arange(4, 8)) ** 2)]
    np.testing.assert_allclose([logs["loss"] for logs in seen], losses, rtol=1e-6)


def test_f10_an_unknown_number_of_batches_goes_with_steps(model, caplog):
    def generator():
        for _ in range(4):
            yield X[:2], Y[:2]

    spec = tf.TensorSpec((2, 1), "float32")
    data = tf.data.Dataset.from_generator(generator, output_signature=(spec, spec))
    with caplog.at_level(logging.INFO, "millrace"):
        model.fit(data, steps_per_epoch=4, verbose=0)
    assert re.search(
        r"number of batches in the data is unknown; 4 are needed.*repeat\(\)", caplog.text
    )


def test_f10_float64_weights_and_splits_as_in_keras(model):
    x, y = rows(12)
    arguments = {"batch_size": 2, "shuffle": False, "verbose": 0}
    arguments |= {"sample_weight": np.linspace(0, 1, 12), "validation_split": 1 / 3}
    actual = model.fit(x.astype("float64"), y.astype("float64"), **arguments)
    stock = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    stock.set_weights([np.full((1, 1), 0.5)])
    stock.compile(keras.optimizers.SGD(0.01), "mse")
    wanted = stock.fit(x, y, **arguments)
    for name, values in wanted.history.items():
        np.testing.assert_allclose(actual.history[name], values, rtol=1e-5)
