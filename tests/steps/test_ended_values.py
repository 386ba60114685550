"""Values that leave the trace that computed them: errors name the line, and what keeps them."""

import jax
import keras
import numpy as np
import pytest
from keras import ops

import millrace
from millrace.errors import ModelError, TaskError


class Leaky(keras.layers.Layer):
    """Calls one of the functions below."""

    def __init__(self, function):
        super().__init__(name="leaky")
        self.function, self.seen, self.store = function, [], {"mean": 0.0}
        self.seed = keras.random.SeedGenerator(1)
        self.count = self.add_weight(shape=(), trainable=False, name="count")

    def call(self, x):
        return self.function(self, x)


def draws_in_a_branch(layer, x):
    return ops.cond(
        ops.sum(x) > 0,
        lambda: x + keras.random.normal((1,), seed=layer.seed),
        lambda: x,
    )


def assigns_in_a_loop(layer, x):
    def body(carry, row):
        layer.count.assign(ops.sum(row))
        return carry, row

    return ops.scan(body, x, x)[0]


def assigns_in_vectorized_map(layer, x):
    def double(row):
        layer.count.assign(ops.sum(row))
        return 2 * row

    return ops.vectorized_map(double, x)


def assigns_in_checkpoint(layer, x):
    def double(x):
        layer.count.assign(ops.sum(x))
        return 2 * x

    return jax.checkpoint(double)(x)


def appends_to_a_list(layer, x):
    layer.seen.append(ops.mean(x))
    return x + sum(layer.seen)


def keeps_in_a_dict(layer, x):
    before, layer.store["mean"] = layer.store["mean"], ops.mean(x)
    return x + before


def keeps_of_a_branch(layer, x):
    def double():
        layer.inside = ops.sum(x)
        return 2 * x

    return ops.cond(ops.sum(x) > 0, double, lambda: x) + layer.inside


def adds_a_loss_in_a_branch(layer, x):
    def double():
        layer.add_loss(ops.mean(x))
        return 2 * x

    return ops.cond(ops.sum(x) > 0, double, lambda: x)


# What the error says besides the line.
LEAKS = {
    draws_in_a_branch: r"seed_generator_state' of layer 'leaky'.*for cond\n.*seed generator",
    assigns_in_a_loop: r"Variable '\S*count' of layer 'leaky'.*for scan",
    assigns_in_vectorized_map: r"Variable '\S*count' of layer 'leaky'",
    assigns_in_checkpoint: r"Variable '\S*count' of layer 'leaky'.*for checkpoint",
    appends_to_a_list: r"The attribute seen\[0\] of layer 'leaky' keeps it.*keras\.Variable",
    keeps_in_a_dict: r"The attribute store\['mean'\] of layer 'leaky' keeps it",
    keeps_of_a_branch: r"for cond\nThe attribute inside of layer 'leaky' keeps it",
    adds_a_loss_in_a_branch: r"for cond\nLet that function return the value",
}
X = np.ones((8, 4), "float32")


def line_of(function):
    return rf'File "{__file__}", line \d+, in {function.__qualname__}.*\n    \S'


def model_of(function, devices=1):
    with millrace.Strategy(millrace.Strategy(devices="cpu:8").devices[:devices]).scope():
        model = keras.Sequential([keras.Input((4,)), Leaky(function), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    return model


@pytest.mark.parametrize("function", LEAKS, ids=lambda function: function.__name__)
def test_the_line_and_what_keeps_the_value_are_named(function):
    with pytest.raises(ModelError, match=rf"(?s){line_of(function)}.*") as error:
        model_of(function).evaluate(X, X[:, :1], batch_size=4, verbose=0)
    assert error.match(rf"(?s){LEAKS[function]}")


@pytest.mark.parametrize("function", [draws_in_a_branch, keeps_in_a_dict])
def test_in_a_pipeline(function):
    model = model_of(function, 2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.set_pipeline_stage_assignment([0, 1])
    with pytest.raises((ModelError, TaskError), match=line_of(function)):
        model.fit(X, X[:, :1], batch_size=4, verbose=0)


def test_in_a_function_of_ones_own():
    count = keras.Variable(0.0, name="count")

    @millrace.compile
    def function(x):
        def double(x):
            count.assign(ops.sum(x))
            return 2 * x

        return jax.checkpoint(double)(x)

    with pytest.raises(ModelError, match=r"Variable 'count'(?s:.*)for checkpoint"):
        function(X)
    kept = []

    def appends(x):
        kept.append(ops.sum(x))
        return x + sum(kept)

    with pytest.raises(ModelError, match=line_of(appends)):
        millrace.compile(appends)(X)
