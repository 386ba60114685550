"""Data and a model for `millrace benchmark`; `test_cli.py` copies them to where it runs."""

import itertools

import keras
import numpy as np

batch = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
listed = [batch] * 7


def endless():
    return itertools.repeat(batch)


def broken():
    raise KeyError("no such directory")


def of_size(rows):
    return listed


def model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


built = model()
