"""Models to watch, and the numbers that there are to see, taken from plain Keras and NumPy."""

import jax
import keras
import numpy as np
from keras import layers

from millrace.base.records.tensors import STATISTICS
from millrace.callbacks import TensorStatistics

RTOL, ATOL = 2e-5, 1e-6  # float32, sums of another order


def arrays_of(path):
    """The arrays of a file of NumPy, by name."""
    with np.load(path) as arrays:
        return dict(arrays)


def eight(value):
    """The eight numbers by NumPy."""
    value = np.asarray(value, np.float64)
    counts = np.isnan(value).sum(), np.isinf(value).sum()
    norm = np.sqrt(np.square(value).sum())
    zeros = (value == 0).mean()
    return [value.mean(), value.std(), value.min(), value.max(), norm, zeros, *counts]


def data(batches=6, inputs=(5,), outputs=1, batch_size=4):
    random = np.random.default_rng(3)
    x = random.normal(size=(batches * batch_size, *inputs)).astype("float32")
    return x, random.normal(size=(len(x), outputs)).astype("float32")


def mlp():
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(6, "relu", name="hidden"),
            layers.Dense(3, "tanh", name="middle"),
            layers.Dense(1, name="out"),
        ]
    )


def built(make=mlp, optimizer=None, seed=1, **compile_options):
    keras.utils.set_random_seed(seed)
    model = make()
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", **compile_options)
    return model


def fit(model, callback=None, xy=None, **arguments):
    x, y = data() if xy is None else xy
    callbacks = [] if callback is None else [callback]
    arguments = {"batch_size": 4, "shuffle": False, "verbose": 0, **arguments}
    return model.fit(x, y, callbacks=callbacks, **arguments)


def watch(*args, **options):
    return TensorStatistics(*args, **{"print_every": 0, **options})


def rows(history, kind=None, name=None):
    """The eight columns as an array, of the rows of one kind and one tensor."""
    chosen = np.ones(len(history["step"]), bool)
    for column, value in (("kind", kind), ("name", name)):
        if value is not None:
            chosen &= history[column] == value
    return np.stack([history[name][chosen] for name in STATISTICS], axis=1)


def column(history, column, kind=None):
    return history[column][history["kind"] == kind if kind else slice(None)].tolist()


def names(history, kind):
    return list(dict.fromkeys(history["name"][history["kind"] == kind]))


def plain(model, outputs, accumulation=1, xy=None):
    """Trains by hand: what layers return and gradients of each batch, gradients of each update."""
    x, y = data() if xy is None else xy
    inner = keras.Model(model.inputs[0], outputs)
    variables = model.trainable_variables

    def loss_of(values, x, y):
        fixed = [v.value for v in model.non_trainable_variables]
        predicted, _ = model.stateless_call(values, fixed, x, training=True)
        return keras.ops.mean(keras.ops.square(predicted - y))

    gradients_of = jax.jit(jax.grad(loss_of))
    activations, gradients, updates = [], [], []
    for begin in range(0, len(x), 4):
        batch = x[begin : begin + 4], y[begin : begin + 4]
        activations.append(jax.tree.leaves(inner(batch[0], training=True)))
        gradients.append(gradients_of([v.value for v in variables], *batch))
        if len(gradients) % accumulation == 0:
            window = gradients[-accumulation:]
            updates.append([sum(values) / accumulation for values in zip(*window, strict=True)])
            model.optimizer.apply(updates[-1], variables)
    return activations, gradients, updates


def assert_rows(found, values):
    np.testing.assert_allclose(found, [eight(value) for value in values], rtol=RTOL, atol=ATOL)


class Block(layers.Layer):
    def __init__(self, units, **options):
        super().__init__(**options)
        self.inner = layers.Dense(units, "relu", name="inner")
        self.outer = layers.Dense(units, name="outer")

    def build(self, shape):
        self.inner.build(shape)
        self.outer.build((*shape[:-1], self.inner.units))

    def call(self, x):
        return self.outer(self.inner(x))


def nested():
    encoder = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4, name="dense"), Block(4, name="block")], name="encoder"
    )
    entry = keras.Input((5,))
    return keras.Model(entry, layers.Dense(1, name="head")(encoder(entry)))
