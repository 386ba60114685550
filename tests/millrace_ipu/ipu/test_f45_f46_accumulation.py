import keras
import numpy as np
import pytest

from millrace_ipu import ipu

V2 = ipu.optimizers.GradientAccumulationOptimizerV2
rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def train(optimizer, weight, iterations, replicas=1):
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(lambda: iter(rows))

    def body(x):
        gradient = x * keras.ops.cast(weight, x.dtype)
        optimizer.apply_gradients([(keras.ops.cast(gradient, weight.dtype), weight)])

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(iterations, body, infeed_queue=infeed))


def ones(dtype="float32"):
    return keras.Variable(np.ones(3), dtype=dtype)


def test_f45_equals_accumulation_by_hand():
    weight, adam = ones(), keras.optimizers.Adam(0.1)
    optimizer = V2(adam, 20)
    train(optimizer, weight, 40)
    expected, by_hand = ones(), keras.optimizers.Adam(0.1)
    for update in rows.reshape(2, 20, 3):
        by_hand.apply([update.sum(0) * expected.numpy()], [expected])
    np.testing.assert_allclose(weight, expected, rtol=1e-5)
    assert adam.iterations.value == optimizer.iterations.value == 2


def test_f45_the_number_of_iterations_is_a_multiple():
    optimizer = V2(keras.optimizers.SGD(0.1), 32)
    with pytest.raises(RuntimeError, match=r"loop of 10 iterations .* 32 iterations .* Set n=32"):
        train(optimizer, ones(), 10)


def test_f45_only_in_a_loop_of_repeat():
    weight = ones()
    optimizer = V2(keras.optimizers.SGD(0.1), 2)
    pairs = [(np.ones(3, np.float32), weight)]
    with pytest.raises(RuntimeError, match="outside of a loop of repeat"):
        optimizer.apply_gradients(pairs)
    with pytest.raises(RuntimeError, match="outside of a loop of repeat"):
        ipu.loops.while_loop(
            lambda n: n < 4, lambda n: (n + 1, optimizer.apply_gradients(pairs) and None), 0
        )


def test_f45_it_is_the_outermost():
    inner = V2(keras.optimizers.SGD(), 2)
    for wrapper in (ipu.optimizers.CrossReplicaOptimizer, lambda opt: V2(opt, 2)):
        with pytest.raises(RuntimeError, match="outermost of all optimizers"):
            wrapper(inner)


def test_f45_numbers_of_mini_batches():
    with pytest.raises(ValueError, match=r"num_mini_batches .*0"):
        V2(keras.optimizers.SGD(), 0)
    weight, alone = ones(), ones()
    train(V2(keras.optimizers.SGD(0.1), 1), weight, 4)
    train(keras.optimizers.SGD(0.1), alone, 4)
    np.testing.assert_allclose(weight, alone, rtol=1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        ipu.optimizers.CrossReplicaGradientAccumulationOptimizerV2,
        ipu.optimizers.CrossReplicaGradientAccumulationOptimizer,
    ],
)
def test_f45_over_replicas_the_mean_of_the_sums(system, kind):
    system(2)
    weight = ones()
    train(kind(keras.optimizers.SGD(0.1), 2), weight, 4)
    expected = np.ones(3)
    for update in rows[:8].reshape(2, 2, 2, 3):  # update, iteration, replica
        expected -= 0.1 * expected * update.sum(0).mean(0)
    np.testing.assert_allclose(weight, expected, rtol=1e-5)


def test_f45_the_older_one_is_for_sgd():
    ipu.optimizers.GradientAccumulationOptimizer(keras.optimizers.SGD(momentum=0.9), 2)
    with pytest.raises(ValueError, match=r"Received: Adam. Set GradientAccumulationOptimizerV2"):
        ipu.optimizers.GradientAccumulationOptimizer(keras.optimizers.Adam(), 2)


def test_f45_means_and_options_without_effect(caplog):
    weight = ones()
    optimizer = V2(
        keras.optimizers.SGD(0.1), 4, None, True, reduction_method="mean", name="accumulating"
    )
    train(optimizer, weight, 4)
    np.testing.assert_allclose(weight, 1 - 0.1 * rows[:4].mean(0), rtol=1e-5)
    assert "replicated_optimizer_state_sharding" in caplog.text
    with pytest.raises(RuntimeError, match="offload_weight_update_variables=None"):
        V2(keras.optimizers.SGD(), 2, offload_weight_update_variables=True)


class CastGradientsSGD(keras.optimizers.SGD):
    seen = ()

    def apply_gradients(self, grads_and_vars, name=None):
        self.seen = [str(g.dtype) for g, _ in grads_and_vars]
        cast = [(keras.ops.cast(g, v.dtype), v) for g, v in grads_and_vars]
        return super().apply_gradients(cast, name)


def test_f46_an_optimizer_that_casts_sees_the_accumulators_dtype():
    weight = ones("float16")
    optimizer = CastGradientsSGD(0.1)
    train(V2(optimizer, 4, dtype="float32"), weight, 4)
    assert optimizer.seen == ["float32"]
    np.testing.assert_allclose(weight, 1 - 0.1 * rows[:4].sum(0), rtol=2e-3)


def test_f46_a_stock_optimizer_does_not_take_it():
    with pytest.raises(TypeError, match=r"accumulated as float32.*is float16: SGD"):
        train(V2(keras.optimizers.SGD(0.1), 4, dtype=np.float32), ones("float16"), 4)


def test_f46_a_function_chooses_by_variable():
    half, single = ones("float16"), ones()
    optimizer = CastGradientsSGD(0.1)
    accumulating = V2(optimizer, 2, dtype=lambda v: "float32" if v.dtype == "float16" else v.dtype)
    mapped = ipu.optimizers.MapGradientOptimizer(optimizer, lambda g, v: 2 * g)
    accumulating = V2(mapped, 2, dtype=lambda v: "float32" if v is half else v.dtype)

    def body():
        one = keras.ops.ones(3)
        accumulating.apply_gradients([(keras.ops.cast(one, "float16"), half), (one, single)])

    ipu.loops.repeat(2, body)
    assert optimizer.seen == ["float32", "float32"]
    np.testing.assert_allclose(single, np.full(3, 1 - 0.1 * 4), rtol=1e-6)
    with pytest.raises(TypeError, match=r"^dtype is a dtype, a function of a variable"):
        V2(optimizer, 2, dtype=5)
