"""Replicas on devices of their own, compared in every bit with replicas that are one batch."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.errors import DataError
from millrace.feeds.infeed_queue import InfeedQueue
from millrace.loops.function import compile as compile_function
from millrace.loops.gradients import value_and_grad
from millrace.loops.repeat import repeat, while_loop
from millrace.loops.replication import (
    cross_replica_mean,
    cross_replica_sum,
    current_group,
    launching,
    replicas,
    replication_index,
)
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.optimizers.cross_replica import CrossReplicaOptimizer
from millrace.taps.outfeed import OutfeedQueue


def batch_of(count):
    """Runs functions as replicas in one batch on one device."""
    return launching(count)


def devices_of(count):
    """Runs functions as replicas on the first devices."""
    return launching(jax.devices()[:count])


def both(run, count):
    """Returns the results of a function that runs in both ways."""
    results = []
    for form, has_group in ((batch_of, False), (devices_of, True)):
        keras.utils.set_random_seed(0)
        with form(count):
            assert compile_function(has_devices)() == has_group
            results.append(jax.tree.map(np.asarray, run()))
    return results


def has_devices():
    return jnp.int32(current_group() is not None)


def assert_same_bits(run, count):
    """Fails if the two ways differ; returns the results."""
    return same_bits(*both(run, count))


def same_bits(batch, devices):
    """Fails if two results differ; returns one."""
    leaves, tree = jax.tree.flatten(batch)
    others, tree_of_others = jax.tree.flatten(devices)
    assert tree == tree_of_others
    for leaf, other in zip(leaves, others, strict=True):
        assert (leaf.shape, leaf.dtype) == (other.shape, other.dtype)
        assert leaf.tobytes() == other.tobytes()
    return devices


def elements(count):
    random = np.random.default_rng(0)
    return [
        (random.normal(size=(16, 8)).astype("float32"), random.integers(0, 4, 16).astype("int32"))
        for _ in range(count)
    ]


def training(optimizer, rate=0.0):
    """Returns a function that trains a model in three runs of a program."""

    def run():
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dropout(rate), layers.Dense(4)]
        )
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trained, metric, queue = optimizer(), keras.metrics.Mean(), OutfeedQueue()

        def body(x, y):
            weights = model.trainable_variables
            loss, gradients = value_and_grad(lambda: loss_of(y, model(x, training=True)), weights)
            trained.apply(gradients, weights)
            metric.update_state(loss)
            queue.enqueue({"loss": loss, "weight": weights[0].value})

        def train(n):
            repeat(n, body, infeed=infeed)
            return metric.result()

        train = compile_function(train)
        with InfeedQueue(elements(64)) as infeed:
            results = [train(n) for n in (4, 2, 6)]
        state = [variable.value for variable in (*model.variables, *trained.variables)]
        return results, queue.dequeue(), state

    return run


SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
OPTIMIZERS = {
    "sgd": (lambda: CrossReplicaOptimizer(SGD(0.1)), 0.0),
    "momentum": (lambda: CrossReplicaOptimizer(SGD(0.1, momentum=0.9)), 0.0),
    "adam, dropout": (lambda: CrossReplicaOptimizer(Adam(0.01)), 0.5),
    "no exchange": (lambda: Adam(0.01), 0.5),
    "accumulation": (
        lambda: AccumulatingOptimizer(CrossReplicaOptimizer(SGD(0.1, momentum=0.9)), 2),
        0.0,
    ),
    "global norm": (lambda: CrossReplicaOptimizer(Adam(0.01, global_clipnorm=0.1)), 0.0),
}


@pytest.mark.slow
@pytest.mark.shipped_compiler  # the quick one computes a batch in another order
@pytest.mark.parametrize(("name", "count"), [(name, 2) for name in OPTIMIZERS] + [("momentum", 5)])
def test_training_has_the_bits_of_a_batch(name, count):
    batch, devices = both(training(*OPTIMIZERS[name]), count)
    if name == "sgd":
        # XLA rounds `weight - rate * gradient` once in one form, and twice in the other.
        for leaf, other in zip(jax.tree.leaves(batch), jax.tree.leaves(devices), strict=True):
            np.testing.assert_allclose(leaf, other, rtol=2e-6, atol=2e-7)
    else:
        same_bits(batch, devices)
    _, found, state = devices
    assert found["loss"].shape == (12, count)
    weights = found["weight"]
    equal = (weights == weights[:, :1]).all()
    assert equal == (name != "no exchange")
    np.testing.assert_array_equal(state[0], weights[-1, 0])


def test_sums_have_the_order_of_the_replicas():
    values = np.random.default_rng(0).normal(size=(6, 33)).astype("float32")

    def run():
        queue = OutfeedQueue()

        def f(values):
            own = values[replication_index()]
            pairs, one = {"a": own, "b": (own[:7], own > 0)}, jnp.float32(replicas())
            of_groups = [cross_replica_sum(pairs, size) for size in (None, 3, 2, 1)]
            half = cross_replica_mean(own.astype("bfloat16"))
            slope = jax.grad(lambda x: (cross_replica_sum(x, 3) * own).sum())(own)
            queue.enqueue((of_groups, half, slope, cross_replica_sum(one)))
            return cross_replica_sum(own)

        return compile_function(f)(values), queue.dequeue()

    total, _ = assert_same_bits(run, 6)
    expected = values[0]
    for row in values[1:]:
        expected = expected + row
    assert total.tobytes() == expected.tobytes()


@pytest.mark.slow
def test_replicas_run_as_long_as_one_of_them_goes_on():
    def run():
        total = keras.Variable(np.float32(1))
        queue = OutfeedQueue()

        def body(n, x):
            total.assign_add(x * (1 + replication_index()))
            queue.enqueue(total.value)
            return n + cross_replica_sum(x)

        def f():
            count = while_loop(lambda n: n < 4 + 3 * replication_index(), body, 0.0, infeed)
            return count, repeat(3, lambda x: x + total.value, inputs=0.0), total.value

        with InfeedQueue([np.float32(0.5)] * 50) as infeed:
            results = compile_function(f)(), compile_function(f)()
            return results, queue.dequeue(), infeed.delivered

    results, queue, delivered = assert_same_bits(run, 3)
    assert results[0][0] == 10.5
    assert queue.shape == (14, 3)
    assert delivered == 42


def test_nested_loops_and_loops_one_after_the_other():
    def run():
        first, second, third = OutfeedQueue(), OutfeedQueue(), OutfeedQueue("last")

        def inner(total, x):
            first.enqueue(x)
            return total + x

        def outer(total, x):
            second.enqueue(x)
            return repeat(2, inner, inputs=total + x, infeed=infeed)

        def f(n):
            total = repeat(n, outer, inputs=0.0, infeed=others)
            # Does not depend on the loop before, but takes from the same queue.
            rest = repeat(2, lambda t, x: (t + x, third.enqueue(x))[0], inputs=0.0, infeed=infeed)
            return total, rest

        f = compile_function(f)
        with InfeedQueue(numbers(80)) as infeed, InfeedQueue(numbers(40)) as others:
            return [f(n) for n in (3, 0, 5)], first.dequeue(), second.dequeue(), third.dequeue()

    _, first, second, third = assert_same_bits(run, 2)
    # The first run takes 12 elements in its inner loop and 4 after it, the second 4.
    taken = [*range(12), *range(20, 40)]
    np.testing.assert_array_equal(first, np.reshape(taken, (16, 2)))
    np.testing.assert_array_equal(second, np.arange(16).reshape(8, 2))
    np.testing.assert_array_equal(third, [42, 43])


def numbers(count):
    return [np.float32(i) for i in range(count)]


def test_data_that_end_and_a_second_run():
    def run():
        queue = OutfeedQueue()

        def body(n, x):
            queue.enqueue(x)
            return n + x

        f = compile_function(lambda n: repeat(n, body, 0.0, infeed))
        with InfeedQueue(numbers(15)) as infeed:
            first = f(3)
            with pytest.raises(DataError, match="after 15 elements"):
                f(9)
            arrived = queue.dequeue()
            infeed.close()
            return first, arrived, f(2), queue.dequeue()

    _, arrived, _, after = assert_same_bits(run, 2)
    np.testing.assert_array_equal(arrived, np.arange(14).reshape(7, 2))
    np.testing.assert_array_equal(after, np.arange(4).reshape(2, 2))


def test_variables_go_from_one_form_to_the_other():
    counter = keras.Variable(np.float32(0))
    seen = OutfeedQueue()

    def f():
        counter.assign_add(1.0 + replication_index())
        seen.enqueue(counter.value)
        return counter.value

    f = compile_function(f)
    for form, count in ((devices_of, 2), (batch_of, 2), (devices_of, 2), (devices_of, 3)):
        with form(count):
            f()
    assert f() == 5  # without replicas, of replica 0's value
    arrived = list(seen)
    np.testing.assert_array_equal(arrived[2], [3, 6])
    np.testing.assert_array_equal(arrived[3], [4, 5, 6])  # another number of replicas: from the 3
    counter.assign(10.0)
    with devices_of(2):
        assert f() == 11
    np.testing.assert_array_equal(list(seen)[-1], [11, 12])
    assert counter.value.sharding.device_set == {jax.devices()[0]}


def test_weights_that_a_function_only_reads_are_moved_once(monkeypatch):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    f = compile_function(lambda x: cross_replica_sum(model(x)), replicas=2)
    x = np.ones((1, 3), np.float32)
    first = f(x)
    moved = []
    original = jax.device_put
    watch = lambda value, *args: moved.append(value) or original(value, *args)  # noqa: E731
    monkeypatch.setattr(jax, "device_put", watch)
    np.testing.assert_array_equal(first, f(x))
    assert [value.shape for value in moved] == [(1, 3)]
    model.layers[0].kernel.assign(np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(f(x), [[6, 6]])


def test_each_replica_computes_on_its_device():
    places = []

    def f():
        jax.debug.callback(lambda index: places.append(int(index)), replication_index())
        return replicas()

    assert compile_function(f, replicas=3)() == 3
    jax.effects_barrier()
    assert sorted(places) == [0, 1, 2]
    weight = keras.Variable(np.float32(1))
    compile_function(lambda: weight.assign_add(1.0 * replication_index()), replicas=3)()
    copies = weight.millrace_copies.stacked
    assert len(copies.sharding.device_set) == 3


def test_more_replicas_than_devices_are_a_batch(caplog):
    caplog.set_level("INFO", "millrace")
    total = compile_function(lambda: cross_replica_sum(1.0 + replication_index()), replicas=11)
    assert total() == 66
    assert "11 replicas of a function run as a batch on one device: there are 8" in caplog.text


def test_replicas_that_take_different_branches_exchange_all_the_same():
    def run():
        total = keras.Variable(np.float32(0))
        queue = OutfeedQueue()

        def exchanging():
            total.assign_add(cross_replica_sum(1.0 + replication_index()))
            return cross_replica_mean(total.value)

        def body(n):
            total.assign_add(0.5)
            wants = n % 3 <= replication_index()  # of three: all, two, one
            value = keras.ops.cond(wants, exchanging, lambda: total.value)
            never = keras.ops.cond(n < 0, exchanging, lambda: total.value)
            queue.enqueue((value, never))
            return n + 1

        return compile_function(lambda: repeat(6, body, 0))(), queue.dequeue()

    _, (values, _) = assert_same_bits(run, 3)
    assert values[1, 0] != values[1, 1]


def test_a_loss_scale_decides_on_each_replica():
    def run():
        weight = keras.Variable(np.float32(1))
        inner = keras.optimizers.SGD(1.0)
        optimizer = keras.optimizers.LossScaleOptimizer(CrossReplicaOptimizer(inner), 8.0)
        optimizer.build([weight])
        queue = OutfeedQueue()

        def body(n):
            bad = (n == 1) & (replication_index() == 1)
            optimizer.apply([jnp.where(bad, jnp.inf, 8.0)], [weight])
            queue.enqueue((weight.value, optimizer.dynamic_scale.value))
            return n + 1

        return compile_function(lambda: repeat(3, body, 0))(), queue.dequeue()

    assert_same_bits(run, 2)


def test_a_value_that_a_loop_reads_may_become_different_on_replicas():
    def run():
        weight, queue = keras.Variable(np.float32(1)), OutfeedQueue()
        read = compile_function(lambda: repeat(2, lambda: queue.enqueue(weight.value)))
        change = compile_function(lambda: weight.assign_add(1.0 + replication_index()))
        read()
        change()
        read()
        weight.assign(5.0)
        read()
        return queue.dequeue()

    found = assert_same_bits(run, 2)
    np.testing.assert_array_equal(found[::2], [[1, 1], [2, 3], [5, 5]])
