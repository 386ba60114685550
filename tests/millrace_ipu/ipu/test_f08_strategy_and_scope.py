import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from linear_models import linear

from millrace_ipu import ipu
from millrace_ipu.ipu.ipu_strategy import IPUStrategy, IPUStrategyV1, current_strategy


def test_f08_two_names_and_the_arguments_of_both():
    assert IPUStrategyV1 is IPUStrategy
    strategy = IPUStrategy("/device:IPU:0", "/device:CPU:0", True, True)
    assert strategy.num_replicas_in_sync == 1
    with pytest.raises(RuntimeError, match=r"Call strategy.run\(\) instead"):
        strategy.experimental_run_v2(lambda: 1)


def test_f08_run_returns_the_value_of_a_compiled_function(system):
    system(2)
    strategy = IPUStrategy()
    add = jax.jit(lambda a, b: a + b)
    actual = strategy.run(add, args=[jnp.ones(3)], kwargs={"b": 2.0}, options=None)
    np.testing.assert_array_equal(actual, [3, 3, 3])
    assert strategy.run(jax.jit(lambda: None)) is None


def test_f08_run_refuses_a_plain_function_and_float64():
    strategy = IPUStrategy()
    with pytest.raises(ValueError, match=r"takes a compiled function.*Set fn=jax.jit"):
        strategy.run(lambda: 1)
    with pytest.raises(TypeError, match=r"float64, of shape \(2,\).*Cast it"):
        strategy.run(jax.jit(lambda x: x), [np.zeros(2)])


def test_f08_one_scope_at_a_time():
    strategy = IPUStrategy()
    with strategy.scope() as entered:
        assert entered is strategy
        assert current_strategy() is strategy
        with pytest.raises(RuntimeError, match="already active"), IPUStrategy().scope():
            pass
    with IPUStrategy().scope():
        pass


def test_f08_the_newest_strategy_is_current_outside_of_scopes(system):
    strategy = IPUStrategy()
    assert current_strategy() is strategy
    system(2)
    assert len(current_strategy().devices) == 2  # of the current system
    other = IPUStrategy()
    assert current_strategy() is other


def test_f08_models_of_a_scope_lie_on_its_device(system):
    config = ipu.config.IPUConfig()
    config.select_ipus = 3
    config.configure_ipu_system()
    strategy = IPUStrategy()
    model = linear(strategy)
    model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=2, verbose=0)
    assert model.trainable_variables[0].value.devices() == {jax.devices()[3]}
    assert keras.backend.backend() == "jax"
