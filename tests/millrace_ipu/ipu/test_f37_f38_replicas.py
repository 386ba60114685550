import keras
import numpy as np
import pytest

import millrace
from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf

replication_index = ipu.replication_ops.replication_index
IPUOutfeedQueue = ipu.ipu_outfeed_queue.IPUOutfeedQueue


def compiled(computation, *inputs):
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        return ipu.ipu_compiler.compile(computation, inputs)


def test_f37_eight_devices_and_two_shards_are_four_replicas(system, caplog):
    system(8)
    queue = IPUOutfeedQueue()

    def net(x):
        for shard in range(2):
            with ipu.scopes.ipu_shard(shard):
                x = x + 1

        def body():
            queue.enqueue((replication_index(), x))

        return ipu.loops.repeat(3, body), x

    assert compiled(net, 1.0) == [3.0]  # once, without an axis of replicas
    index, x = queue.dequeue()
    np.testing.assert_array_equal(index, [[0, 1, 2, 3]] * 3)
    assert x.shape == (3, 4)


def test_f37_three_devices_and_two_shards(system):
    system(3)

    def net():
        with ipu.scopes.ipu_shard(1):
            return 1

    with pytest.raises(RuntimeError, match=r"2 shards.*3 devices.*Configure 2 devices"):
        compiled(net)


def test_f37_strategy_run_has_a_replica_for_each_device(system):
    system(4)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue([np.float32(k) for k in range(12)])
    queue = IPUOutfeedQueue()

    @millrace.compile
    def net():
        return ipu.loops.repeat(3, lambda n, x: (n + x, queue.enqueue(x)), 0.0, infeed)

    assert ipu.ipu_strategy.IPUStrategy().run(net) == 0 + 4 + 8
    np.testing.assert_array_equal(queue.dequeue(), np.arange(12).reshape(3, 4))


def test_f38_gradients_are_averaged(system):
    system(2)
    weight = keras.Variable(np.float32(10))
    optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(1.0))
    queue = IPUOutfeedQueue()

    def body():
        gradient = 1.0 + 2.0 * replication_index().astype("float32")  # 1 and 3
        optimizer.apply_gradients([(gradient, weight)])
        queue.enqueue(weight.value)

    compiled(lambda: ipu.loops.repeat(1, body))
    np.testing.assert_array_equal(queue.dequeue(), [[8, 8]])
    assert weight.value == 8
    assert optimizer.iterations.value == 1


SGD, Scaled = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
Mean, Map = ipu.optimizers.CrossReplicaOptimizer, ipu.optimizers.MapGradientOptimizer
Accumulating = ipu.optimizers.GradientAccumulationOptimizerV2
OPTIMIZERS = {  # and what three updates by the gradients 1 and 2 add up to
    "sum": (lambda: SGD(1.0), 3 * 3),
    "before_it_is_clipped": (lambda: SGD(1.0, clipvalue=2.5), 3 * 2.5),
    "before_it_is_mapped": (lambda: Map(SGD(1.0), lambda g, _: g * g), 3 * 3**2),
    "once_for_two_optimizers": (lambda: Scaled(SGD(1.0), initial_scale=1.0), 3 * 3),
    "mean": (lambda: Scaled(Mean(SGD(1.0)), initial_scale=1.0), 3 * 1.5),
    "accumulated": (lambda: Accumulating(SGD(1.0), 3), 3 * 3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_f38_optimizers_in_run_add_up_gradients(system, name):
    make, expected = OPTIMIZERS[name]
    system(2)
    strategy = ipu.ipu_strategy.IPUStrategy()
    data = tf.data.Dataset.from_tensor_slices(np.float32([1, 2])).repeat()
    with strategy.scope():
        weight, optimizer, iterator = tf.Variable(0.0), make(), iter(data)

        @tf.function
        def loop(iterator):
            for _ in tf.range(3):
                optimizer.apply_gradients([(next(iterator), weight)])

        @tf.function
        def without_a_loop(iterator):
            optimizer.apply([next(iterator)], [weight])

        strategy.run(loop, args=(iterator,))
        assert float(weight.value) == -expected
        if name != "accumulated":
            for _ in range(3):
                strategy.run(without_a_loop, args=(iterator,))
            assert float(weight.value) == -2 * expected
            assert int(optimizer.iterations.value) == 6


def test_f38_shards_of_a_function_without_a_loop(system):
    system(2)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        iterator = iter(tf.data.Dataset.range(4))

    @tf.function
    def sharded(iterator):
        with ipu.scopes.ipu_shard(1):
            return next(iterator)

    with pytest.raises(NotImplementedError, match=r"2 devices .* 1 replicas.*tf.range\(1\)"):
        strategy.run(sharded, args=(iterator,))


def test_f38_without_exchange_replicas_drift(system):
    system(2)
    weight = keras.Variable(np.float32(10))
    queue = IPUOutfeedQueue()

    def body():
        weight.assign(weight - 1.0 - 2.0 * replication_index())
        queue.enqueue(weight.value)

    for _ in range(2):
        compiled(lambda: ipu.loops.repeat(1, body))
    np.testing.assert_array_equal(queue.dequeue(), [[9, 7], [8, 4]])


def test_f38_sums_and_means(system):
    system(4)
    sum_of, mean_of = (
        ipu.cross_replica_ops.cross_replica_sum,
        ipu.cross_replica_ops.cross_replica_mean,
    )

    def net(x):
        x = x + replication_index()
        same = ipu.cross_replica_ops.assume_equal_across_replicas(x)
        return sum_of(x), mean_of(same), sum_of(x, 2), mean_of(x, replica_group_size=2)

    assert compiled(net, 1.0) == [10, 2.5, 3, 1.5]
    with pytest.raises(ValueError, match=r"replica_group_size=3 does not divide the 4 replicas"):
        compiled(lambda x: sum_of(x, 3), 1.0)


def test_f38_gradients_that_are_mapped():
    weight = keras.Variable(np.float32(10))
    calls = []

    def halve(gradient, variable):
        calls.append(variable)
        return gradient / 2

    optimizer = ipu.optimizers.MapGradientOptimizer(keras.optimizers.SGD(1.0), halve)
    optimizer.minimize(lambda: weight * weight, [weight])
    assert weight.value == 0  # 10 - 20 / 2
    assert calls == [weight]
    with pytest.raises(ValueError, match="function of a gradient and its variable"):
        ipu.optimizers.MapGradientOptimizer(keras.optimizers.SGD(), None)


def test_f38_minimize_needs_a_function():
    weight, steps = keras.Variable(np.float32(3)), keras.Variable(0, dtype="int32")
    optimizer = ipu.optimizers.IpuOptimizer(keras.optimizers.SGD(0.5))
    [(gradient, variable)] = optimizer.compute_gradients(lambda: weight * weight)
    assert (gradient, variable is weight) == (6, True)
    optimizer.minimize(lambda: weight * weight, global_step=steps)
    assert (weight.value, steps.value) == (0, 1)
    with pytest.raises(TypeError, match=r"minimize\(lambda: .*GradientTape"):
        optimizer.minimize(weight * weight, [weight])
    with pytest.raises(ValueError, match=r"CrossReplicaOptimizer wraps a keras.optimizers"):
        ipu.keras.optimizers.CrossReplicaOptimizer("sgd")
