"""Idioms of strategies, and of the order of strategies and configurations."""

import keras
import pytest
from idioms import idiom

START = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu

def configure(number):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = number
    config.configure_ipu_system()

def make(stages=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    if stages:
        model.set_pipeline_stage_assignment(stages)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "mse", steps_per_execution=4)
    return model

x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(16, 3)
y = x.sum(1, keepdims=True)

def train(model):
    model.fit(x, y, batch_size=2, verbose=0, shuffle=False)
    return int(model.optimizer.iterations)
"""


@pytest.mark.slow
@idiom("Strategies", "`strategy = IPUStrategy()` at module level, configured in `main()`")
def test_a_strategy_before_the_configuration(program):
    text = """
strategy = ipu.ipu_strategy.IPUStrategy()

def main():
    configure(2)
    with strategy.scope():
        print(train(make()), len(strategy.devices))

if __name__ == "__main__":
    main()
"""
    assert program(START + text) == "4 2\n"  # 8 batches, two at a time


@pytest.mark.slow
@idiom("Strategies", "a strategy kept over a second `configure_ipu_system()` with more devices")
def test_a_strategy_gets_the_devices_of_the_second_configuration(program):
    text = """
configure(1)
strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    print(train(make()))
configure(2)
with strategy.scope():
    print(train(make()))
    print(train(make([0, 1])))
"""
    assert program(START + text) == "8\n4\n2\n"


@pytest.mark.slow
@idiom("Strategies", "a model that has trained, and continues with more replicas")
def test_a_trained_model_goes_on(program):
    text = """
configure(1)
strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = make()
train(model)
before = model.get_weights()
configure(2)
print(all((a == b).all() for a, b in zip(before, model.get_weights())))
print(train(model))
"""
    assert program(START + text) == "True\n12\n"


@pytest.mark.slow
@idiom("Strategies", "`configure_ipu_system()` within `with strategy.scope()`")
def test_a_configuration_within_the_scope(program):
    text = """
with ipu.ipu_strategy.IPUStrategy().scope():
    configure(2)
    print(train(make()))
"""
    assert program(START + text) == "4\n"


@pytest.mark.slow
@idiom("Strategies", "a new `IPUStrategy` for validation, configured with one device")
def test_a_strategy_for_validation(program):
    text = """
def strategy_with(replicas):
    configure(replicas)
    return ipu.ipu_strategy.IPUStrategy()

with strategy_with(2).scope():
    model = make()
    print(train(model))
with strategy_with(1).scope():
    other = make()
    other.set_weights(model.get_weights())
    print(np.allclose(other.predict(x, batch_size=2, verbose=0), model(x), atol=1e-6))
"""
    assert program(START + text) == "4\nTrue\n"


@pytest.mark.slow
@idiom("Strategies", '`ipu_strategy.IPUStrategyV1("/device:IPU:1")` of `auto_select_ipus = [1, 2]`')
def test_strategies_of_two_logical_devices(program):
    text = """
configure([1, 2])
for device in ("/device:IPU:0", "/device:IPU:1"):
    strategy = ipu.ipu_strategy.IPUStrategyV1(device)
    with strategy.scope():
        print(train(make()), ipu.utils.get_num_of_ipus_in_device(device))
"""
    assert program(START + text) == "8 1\n4 2\n"


@idiom("Strategies", "`strategy.scope().__enter__()` for a whole notebook")
def test_a_scope_that_is_entered_by_hand(program):
    text = """
configure(2)
scope = ipu.ipu_strategy.IPUStrategy().scope()
scope.__enter__()
print(train(make()))
scope.__exit__(None, None, None)
"""
    assert program(START + text) == "4\n"
    assert not hasattr(keras.Sequential([keras.layers.Dense(1)]), "set_pipelining_options")
