"""Values that change: as tensors they compile nothing, as Python numbers they do."""

import keras
import numpy as np
import pytest

from millrace.base.records.compilation import Origin
from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf


@pytest.fixture
def strategy(system):
    system(1)
    return ipu.ipu_strategy.IPUStrategy()


def programs(strategy):
    return [r for r in strategy.compile_log if r.is_executable and r.origin is not Origin.SWITCH]


def times(multiplier):
    @tf.function(jit_compile=True)
    def multiplied(x):
        return x * multiplier

    return multiplied


@tf.function(jit_compile=True)
def scaled(x, multiplier):
    return x * multiplier


def test_f71_a_tensor_compiles_once_for_all_values(strategy):
    x = np.float32([1, 2])
    with strategy.scope():
        for value in (10.0, 0.3):
            result = strategy.run(scaled, [x, tf.constant(value)])
            np.testing.assert_allclose(result, x * np.float32(value))
    assert len(programs(strategy)) == 1


def test_f71_a_python_number_compiles_for_each_value(strategy):
    x = np.float32([1, 2])
    with strategy.scope():
        for value in (10.0, 0.3, 10.0):
            np.testing.assert_allclose(strategy.run(scaled, [x, value]), x * np.float32(value))
    first, second = programs(strategy)
    assert first.program == second.program == "scaled"
    assert "multiplier" in str(second.cause)
    assert "10.0" in str(second.cause)
    assert "0.3" in str(second.cause)


def test_f71_a_constant_in_the_closure_compiles_once_more(strategy):
    x = np.float32([1, 2])
    with strategy.scope():
        for value in (10.0, 0.3):
            result = strategy.run(times(value), [x])
            np.testing.assert_allclose(result, x * np.float32(value))
    assert len(programs(strategy)) == 2


def test_f71_new_weights_compile_nothing(strategy):
    x = np.float32([[1, 2]])

    @tf.function
    def infer(x):
        return layer(x)

    with strategy.scope():
        layer = keras.layers.Dense(2)
        layer.build((None, 2))
        for factor in (1.0, -2.0):
            weights = [np.full((2, 2), factor), np.zeros(2)]
            layer.set_weights(weights)
            np.testing.assert_allclose(strategy.run(infer, [x]), x @ weights[0])
    assert len(programs(strategy)) == 1
