"""A linear model of one weight, whose training can be computed by hand.

loss of a batch    mean((w x - y)^2)
gradient           mean(2 x (w x - y))
"""

import keras
import numpy as np

RATE, START = 0.01, 0.5


def linear(strategy, steps_per_execution=1, metrics=(), **arguments):
    """Returns the model, built and compiled in the strategy's scope."""
    with strategy.scope():
        layer = keras.layers.Dense(
            1, use_bias=False, kernel_initializer=keras.initializers.Constant(START)
        )
        model = keras.Sequential([keras.Input((1,)), layer])
    optimizer = arguments.pop("optimizer", None) or keras.optimizers.SGD(RATE)
    model.compile(
        optimizer,
        "mse",
        metrics=list(metrics),
        steps_per_execution=steps_per_execution,
        **arguments,
    )
    return model


def two_stages(strategy, steps_per_execution=1, stages=(0, 1), **arguments):
    """Returns a pipelined model with one layer in each stage, compiled in the strategy's scope."""
    with strategy.scope():
        widths = [4] * (len(stages) - 1) + [1]
        layers = [keras.layers.Dense(width, "tanh") for width in widths]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.set_pipeline_stage_assignment(list(stages))
    optimizer = arguments.pop("optimizer", None) or keras.optimizers.SGD(RATE)
    model.compile(optimizer, "mse", steps_per_execution=steps_per_execution, **arguments)
    return model


def rows(number):
    """Returns x and y with a number of rows."""
    x = np.random.normal(size=(number, 1)).astype("float32")
    return x, (3 * x + np.random.normal(size=x.shape)).astype("float32")


def gradients(weight, x, y, batch_size):
    """Returns the gradient of each batch, in float64."""
    x, y = (np.asarray(v, np.float64).reshape(-1, batch_size) for v in (x, y))
    return np.mean(2 * x * (weight * x - y), axis=1)


def weight_of(model):
    """Returns the weight of the model that `linear` makes."""
    return float(model.get_weights()[0].item())
