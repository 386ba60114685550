import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.repeat import repeat
from millrace.api.own_loops.replication import in_replica
from millrace.errors import OptionError, PlanError, UnsupportedError
from millrace_ipu.ipu.optimizers import MapGradientOptimizer
from millrace_ipu.ipu.optimizers.gradient_accumulation_optimizer import AccumulatingOptimizer
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer


def ones(dtype="float32"):
    return keras.Variable(np.ones(2), dtype=dtype)


def test_settings_are_those_of_the_wrapped_optimizer():
    sgd = keras.optimizers.SGD(0.5, momentum=0.9)
    optimizer = CrossReplicaOptimizer(MapGradientOptimizer(sgd, lambda g, v: g))
    optimizer.learning_rate = 0.25
    assert (float(sgd.learning_rate), optimizer.momentum) == (0.25, 0.9)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = optimizer.no_such_thing
    copy = type(optimizer).from_config(optimizer.get_config())
    assert copy.momentum == 0.9  # what is around it belongs to a program


def test_gradients_are_mapped_before_they_are_accumulated_and_not_again():
    seen = []
    weight, none = ones(), ones()
    mapping = MapGradientOptimizer(
        keras.optimizers.SGD(1.0), lambda g, v: (seen.append(v), 3 * g)[1]
    )
    optimizer = AccumulatingOptimizer(mapping, 2, reduction="mean")
    repeat(4, lambda: optimizer.apply([keras.ops.ones(2), None], [weight, none]))
    np.testing.assert_allclose(weight, [-5, -5])
    np.testing.assert_allclose(none, [1, 1])
    assert all(v is weight for v in seen)
    assert optimizer.iterations.value == 2


def test_a_loop_is_a_whole_number_of_updates():
    weight = ones()
    optimizer = AccumulatingOptimizer(keras.optimizers.SGD(1.0), 4)
    with pytest.raises(PlanError, match=r"A loop of 10 iterations .* multiple of 4. Set n=8"):
        repeat(10, lambda: optimizer.apply([keras.ops.ones(2)], [weight]))
    np.testing.assert_array_equal(weight, [1, 1])


def test_variables_that_are_overwritten_are_accumulated_as_by_keras():
    found, expected = ones(), ones()
    for variable in (found, expected):
        variable.overwrite_with_gradient = True
    mapping = MapGradientOptimizer(keras.optimizers.SGD(1.0), lambda g, v: 3 * g)
    optimizer = AccumulatingOptimizer(CrossReplicaOptimizer(mapping), 2, reduction="mean")
    values = iter(keras.ops.array([[0.5, 4.0], [2.0, 0.25]]))
    by_keras = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
    count = keras.Variable(0, dtype="int32")

    def body():
        optimizer.apply([keras.ops.where(count == 0, first, second)], [found])
        count.assign_add(1)

    first, second = values
    repeat(2, body)
    for value in (first, second):
        by_keras.apply([value], [expected])
    np.testing.assert_array_equal(found, expected)


def test_a_float16_weight_accumulates_in_float32_with_any_optimizer():
    weight = ones("float16")
    optimizer = AccumulatingOptimizer(keras.optimizers.SGD(1.0), 3, dtype="float32")
    small = np.full(2, 2**-12, np.float16)  # 1 + 2**-12 is 1 in float16
    optimizer.build([weight])
    repeat(3, lambda: optimizer.apply([keras.ops.ones(2, "float16") * small]))
    assert optimizer._accumulators[0].dtype == "float32"
    np.testing.assert_allclose(weight, 1 - 3 * 2**-12, atol=2**-11)


def test_what_is_refused():
    sgd = keras.optimizers.SGD()
    with pytest.raises(OptionError, match=r"reduction is 'sum' or 'mean'. Received: 'max'"):
        AccumulatingOptimizer(sgd, 2, reduction="max")
    with pytest.raises(OptionError, match="steps must be"):
        AccumulatingOptimizer(sgd, 0)
    with pytest.raises(PlanError, match=r"Set AccumulatingOptimizer\(CrossReplicaOptimizer"):
        CrossReplicaOptimizer(AccumulatingOptimizer(sgd, 2))
    with pytest.raises(OptionError, match="such as lambda gradient, variable"):
        MapGradientOptimizer(sgd, 3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(AccumulatingOptimizer(sgd, 2), "mse")
    with pytest.raises(PlanError, match="set_gradient_accumulation_options"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)


def test_a_stage_exchanges_nothing_by_itself():
    optimizer = CrossReplicaOptimizer(keras.optimizers.SGD(1.0))
    weight = ones()
    with (
        in_replica(0, 2),
        pytest.raises(UnsupportedError, match="Average the gradients in the optimizer"),
    ):
        optimizer.apply([np.ones(2, np.float32)], [weight])


@pytest.mark.slow
@pytest.mark.parametrize("stages", [None, [0, 1]])
def test_a_models_gradients_are_mapped_before_they_are_accumulated(stages):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    y = x.sum(1, keepdims=True)

    def clip(gradient, variable):
        return keras.ops.clip(gradient, -0.5, 0.5)  # of a sum it would be another thing

    strategy = millrace.Strategy(devices=2 if stages else 1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)]
        )
    start = [jnp.asarray(w) for w in model.get_weights()]
    options = {
        "gradient_accumulation_steps_per_replica": 4,
        "gradient_accumulation_reduction_method": "sum",
    }
    if stages:
        model.set_pipeline_stage_assignment(stages)
        model.set_pipelining_options(**options)
    else:
        model.set_gradient_accumulation_options(**options)
    model.compile(
        MapGradientOptimizer(keras.optimizers.SGD(0.1), clip), "mse", steps_per_execution=4
    )
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0)

    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y) ** 2)

    gradients = [jax.grad(loss)(start, x[k : k + 2], y[k : k + 2]) for k in range(0, 8, 2)]
    assert max(float(abs(g).max()) for some in gradients for g in some) > 0.5
    by_weight = zip(*gradients, strict=True)
    for found, before, some in zip(model.get_weights(), start, by_weight, strict=True):
        expected = before - 0.1 * sum(jnp.clip(g, -0.5, 0.5) for g in some)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
