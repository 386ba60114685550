"""A small model cut into stages, for the tests of what is made of them."""

import jax
import keras
import numpy as np
from keras import layers

from millrace.programs.plan import Mode
from millrace.programs.steps import state
from millrace.run.pipelines.assignment.layer_calls import find_calls, leaves
from millrace.run.pipelines.programs.equation_stages import Marks
from millrace.run.pipelines.programs.split_step import split_step

ROWS = 4


def mlp(width=8):
    """Three hidden layers, with a penalty, a mask of Dropout, and statistics."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(width, "tanh", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dense(width, "tanh"),
            layers.Dropout(0.2),
            layers.Dense(1),
        ]
    )


def batch():
    random = np.random.default_rng(1)
    x = random.normal(size=(ROWS, 6)).astype("float32")
    return x, x.sum(axis=1, keepdims=True), None


def state_of(model, mode=Mode.TRAIN):
    return state.state_of(model, mode, lambda variable: variable.value)


def specs(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def compiled(model, **arguments):
    """Compiles a model and makes its variables, those of optimizer and metrics too."""
    model.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **arguments})
    model.train_on_batch(*batch()[:2])
    return model


def cut(model, stages, mode=Mode.TRAIN, data=None):
    calls = find_calls(model)
    marks = Marks(stages, max(stages) + 1, [leaf.label for leaf in leaves(calls)])
    data = batch() if data is None else data
    return split_step(model, mode, calls, marks, specs(state_of(model, mode)), specs(data), False)
