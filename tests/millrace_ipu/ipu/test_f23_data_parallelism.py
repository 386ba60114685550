import logging

import keras
import numpy as np
import pytest
from linear_models import RATE, linear, rows, two_stages

import millrace
from millrace_ipu.ipu.ipu_strategy import IPUStrategy


def test_f23_replicas_are_as_many_as_there_are_devices_for(system):
    system(8)
    strategy = IPUStrategy()
    assert linear(strategy)._millrace.setup.replicas == 8
    model = two_stages(strategy)
    assert model._millrace.setup.replicas == 4
    three = two_stages(strategy, stages=(0, 1, 2))
    assert three._millrace.setup.replicas == 2  # three devices round up to four
    model.set_pipelining_options(device_mapping=[3, 1])
    assert model._millrace.setup.replicas == 2  # four, of which two work


@pytest.mark.parametrize(("devices", "message"), [(1, "has 1"), (3, "has 3"), (6, "has 6")])
def test_f23_devices_that_are_no_whole_number_of_replicas(devices, message, system):
    system(devices)
    stages = (0, 1, 2) if devices == 6 else (0, 1)
    model = two_stages(IPUStrategy(), 8, stages)
    model.set_pipelining_options(8)
    multiple = 4 if devices == 6 else 2
    message += f". Set auto_select_ipus to a multiple of {multiple}"
    with pytest.raises(ValueError, match=message):
        model.fit(*rows(16), batch_size=2)


def test_f23_batches_are_dealt_to_replicas_and_return_in_order(system):
    system(4)
    queue = millrace.OutfeedQueue()
    with IPUStrategy().scope():
        layers = [millrace.layers.Outfeed(queue), keras.layers.Dense(1, use_bias=False)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(steps_per_execution=8)
    x = np.arange(16, dtype="float32")[:, None]
    actual = model.predict(x, batch_size=2, verbose=0)
    np.testing.assert_allclose(actual, x * model.get_weights()[0], rtol=1e-6)
    seen = np.asarray(next(iter(queue.dequeue().values())))  # [rounds, replicas, rows, 1]
    assert seen.shape == (2, 4, 2, 1)
    batches = x.reshape(8, 2, 1)
    for replica in range(4):
        np.testing.assert_array_equal(seen[:, replica], batches[replica::4])


def test_f23_pipelines_of_replicas_train_as_one_device_does(system, caplog):
    system(8)
    x, y = rows(64)
    model = two_stages(IPUStrategy(), 256)
    model.set_pipelining_options(4)
    layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1, "tanh")]
    plain = keras.Sequential([keras.Input((1,)), *layers])
    plain.set_weights(model.get_weights())
    plain.compile(keras.optimizers.SGD(RATE * 16), "mse")  # 16 batches are added up
    with caplog.at_level(logging.INFO, "millrace"):
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
    plain.fit(x, y, batch_size=32, shuffle=False, verbose=0)
    for value, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
    assert (
        "4 batches are accumulated x 4 replicas = 16 batches in a weight update, an effective "
        "batch size of 32 (sum of gradients); 2 weight updates in an execution, 2 in an epoch."
    ) in caplog.text
