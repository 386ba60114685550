"""A strategy follows a system that is configured after it."""

import logging

import jax
import keras
import numpy as np
import pytest
from linear_models import linear, rows, two_stages

from millrace.errors import ModelError
from millrace_ipu import ipu
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.ipu_strategy import IPUStrategy, current_strategy


def devices_of(model):
    return {device.id for v in model.trainable_variables for device in v.value.devices()}


def weight(model):
    return model.get_weights()[0].copy()


def test_a_strategy_that_is_made_before_any_configuration(system):
    strategy = IPUStrategy()
    assert len(strategy.devices) == 1
    system(2)
    assert strategy.devices == current_system().devices == tuple(jax.devices()[:2])
    assert current_strategy() is strategy
    model = linear(strategy, 2)
    assert model._millrace.setup.replicas == 2


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_model_trains_on_with_its_weights_on_the_new_devices(optimizer, system):
    x, y = rows(16)

    def trained(numbers):
        system(numbers[0])
        model = linear(IPUStrategy(), 4, optimizer=keras.optimizers.get(optimizer))
        model.set_gradient_accumulation_options(4 // numbers[0])
        for number in numbers:
            system(number)
            model.set_gradient_accumulation_options(4 // number)
            model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        assert model._millrace.setup.replicas == numbers[-1]
        return weight(model), model.predict(x, batch_size=2, verbose=0)

    wanted = trained([1, 1, 1])
    actual = trained([1, 2, 4])  # updates of four batches in each case
    np.testing.assert_allclose(actual[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(actual[1], wanted[1], rtol=1e-5)
    actual = trained([4, 2, 1])
    np.testing.assert_allclose(actual[0], wanted[0], rtol=1e-5)


@pytest.mark.slow
def test_a_pipeline_that_was_made_for_one_device(system):
    system(1)
    model = two_stages(IPUStrategy(), 16)
    model.set_pipelining_options(4)
    x, y = rows(64)
    with pytest.raises(ValueError, match="The strategy has 1"):
        model.fit(x, y, batch_size=2, verbose=0)
    system(2)
    model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 8
    before = model.get_weights()
    system(4)
    for value, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 8 + 4
    system(8, allow_recompute=True)
    model.fit(x, y, batch_size=2, verbose=0)
    assert int(model.optimizer.iterations) == 8 + 4 + 2
    assert model._millrace.setup.options.recomputation.mode.value == "auto"


@pytest.mark.slow
def test_another_device(system):
    config = ipu.config.IPUConfig()
    config.select_ipus = 2
    config.configure_ipu_system()
    strategy = IPUStrategy()
    model = linear(strategy, 2)
    x, y = rows(8)
    model.fit(x, y, batch_size=2, verbose=0)
    before = weight(model)
    config.select_ipus = 5
    config.configure_ipu_system()
    assert devices_of(model) == {5}
    np.testing.assert_array_equal(weight(model), before)
    model.fit(x, y, batch_size=2, verbose=0)
    assert devices_of(model) == {5}
    with strategy.scope():
        assert jax.numpy.ones(2).devices() == {jax.devices()[5]}
    assert strategy.run(jax.jit(lambda: jax.numpy.ones(2))).devices() == {jax.devices()[5]}


@pytest.mark.slow
def test_within_its_scope(system):
    strategy = IPUStrategy()
    with strategy.scope():
        system(2)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
        model.fit(*rows(8), batch_size=2, verbose=0)
    assert model._millrace.setup.replicas == 2


def test_not_while_a_model_trains(system):
    system(1)
    model = linear(IPUStrategy(), 2)
    before = current_system()

    def configure(batch, logs):
        system(2)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=configure)
    with pytest.raises(ModelError, match=r"cannot get other devices while its fit.*after it has"):
        model.fit(*rows(8), batch_size=2, callbacks=[callback], verbose=0)
    assert current_system() is before
    model.fit(*rows(8), batch_size=2, verbose=0)


def test_an_equal_configuration_keeps_programs(system):
    system(2)
    strategy = IPUStrategy()
    model = linear(strategy, 2)
    model.fit(*rows(8), batch_size=2, verbose=0)
    compiled = strategy.statistics().compilations
    system(2)
    model.fit(*rows(8), batch_size=2, verbose=0)
    assert strategy.statistics().compilations == compiled


def test_a_logical_device_that_is_gone(system, caplog):
    system([1, 2])
    first, second = IPUStrategy(), IPUStrategy("/device:IPU:1")
    with caplog.at_level(logging.WARNING, "millrace"):
        system([3])
    assert "has no /device:IPU:1: a strategy of this name keeps its devices [1, 2]" in caplog.text
    assert (len(first.devices), len(second.devices)) == (3, 2)


@pytest.mark.slow
def test_a_detached_model_stays_where_it_is(system):
    system(1)
    strategy = IPUStrategy()
    model = linear(strategy, 2)
    strategy.detach(model)
    system(2)
    model.fit(*rows(8), batch_size=2, verbose=0)
    assert devices_of(model) == {0}
