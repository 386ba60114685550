"""Replicas of functions: what they compute is what one program computes for all of them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.gradients import value_and_grad
from millrace.api.own_loops.repeat import repeat, while_loop
from millrace.api.own_loops.replication import (
    ReplicaLaunch,
    cross_replica_mean,
    cross_replica_sum,
    launch_in_force,
    replicas,
    replication_index,
)
from millrace.errors import DataError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace_ipu.ipu.optimizers.gradient_accumulation_optimizer import AccumulatingOptimizer
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer


def devices_of(count):
    """Runs functions as replicas on the first devices."""
    return launch_in_force.bound_to(ReplicaLaunch(jax.devices()[:count]))


def on_devices(run, count):
    """Returns the results of a function whose functions run as replicas."""
    with devices_of(count):
        return jax.tree.map(np.asarray, run())


def elements(count):
    random = np.random.default_rng(0)
    return [
        (random.normal(size=(16, 8)).astype("float32"), random.integers(0, 4, 16).astype("int32"))
        for _ in range(count)
    ]


SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OPTIMIZERS = {
    "sgd": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "adam": lambda: Adam(0.01),
    "global norm": lambda: Adam(0.01, global_clipnorm=0.1),
}
CALLS = (4, 2, 6)


class Training:
    """A network, and an optimizer of it."""

    def __init__(self, optimizer, rate=0.0):
        keras.utils.set_random_seed(0)
        layers = keras.layers
        self.model = keras.Sequential(
            [keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dropout(rate), layers.Dense(4)]
        )
        self.optimizer, self.metric, self.queue = optimizer, keras.metrics.Mean(), OutfeedQueue()
        optimizer.build(self.model.trainable_variables)

    def gradients(self, x, y):
        weights = self.model.trainable_variables
        return value_and_grad(lambda: LOSS(y, self.model(x, training=True)), weights)

    def body(self, x, y):
        weights = self.model.trainable_variables
        loss, gradients = self.gradients(x, y)
        self.optimizer.apply(gradients, weights)
        self.metric.update_state(loss)
        self.queue.enqueue({"loss": loss, "weight": weights[0].value})

    def train(self, n):
        repeat(n, self.body, infeed=self.infeed)
        return self.metric.result()

    def run(self, count):
        """Trains as replicas, with new elements in each step."""
        train = compile_function(self.train)
        with devices_of(count), InfeedQueue(elements(sum(CALLS) * count)) as self.infeed:
            return [float(train(n)) for n in CALLS], self.queue.dequeue()

    def state(self):
        return [np.asarray(v) for v in (*self.model.variables, *self.optimizer.variables)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [(name, 2) for name in OPTIMIZERS] + [("momentum", 5)])
def test_training_is_that_with_the_mean_of_all_gradients(name, count):
    replicated = Training(CrossReplicaOptimizer(OPTIMIZERS[name]()))
    means, found = replicated.run(count)
    one, losses = Training(OPTIMIZERS[name]()), []

    @compile_function
    def step(batches):
        parts = [one.gradients(*batch) for batch in batches]
        gradients = [sum(of_one) / count for of_one in zip(*(g for _, g in parts), strict=True)]
        one.optimizer.apply(gradients, one.model.trainable_variables)
        return [loss for loss, _ in parts]

    data = elements(sum(CALLS) * count)
    for k in range(0, len(data), count):
        losses.append(step(data[k : k + count]))
    np.testing.assert_allclose(found["loss"], losses, rtol=1e-6)
    np.testing.assert_allclose(means[-1], np.mean(losses, 0)[0], rtol=1e-6)
    for value, expected in zip(replicated.state(), one.state(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
    weights = found["weight"]
    assert (weights == weights[:, :1]).all()
    np.testing.assert_array_equal(replicated.model.weights[0], weights[-1, 0])


def test_accumulated_gradients_are_those_of_all_replicas():
    replicated = Training(AccumulatingOptimizer(CrossReplicaOptimizer(SGD(0.1)), 2))
    _, found = replicated.run(2)
    weights = found["weight"]
    assert (weights == weights[:, :1]).all()
    changes = [bool((a != b).any()) for a, b in itertools.pairwise(weights[:, 0])]
    assert changes == [True, False] * 5 + [True]  # after every second step


def test_without_an_exchange_each_replica_trains_alone():
    replicated = Training(Adam(0.01))
    _, found = replicated.run(2)
    alone = Training(Adam(0.01))
    train = compile_function(alone.train)
    with InfeedQueue(elements(2 * sum(CALLS))[::2]) as alone.infeed:
        train(sum(CALLS))
    np.testing.assert_allclose(found["loss"][:, 0], alone.queue.dequeue()["loss"], rtol=1e-6)
    for value, expected in zip(replicated.state(), alone.state(), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
    assert (found["weight"][:, 0] != found["weight"][:, 1]).any()


def test_sums_have_the_order_of_the_replicas():
    values = np.random.default_rng(0).normal(size=(6, 33)).astype("float32")
    queue = OutfeedQueue()

    def f(values):
        own = values[replication_index()]
        pairs, one = {"a": own, "b": (own[:7], own > 0)}, jnp.float32(replicas())
        of_groups = [cross_replica_sum(pairs, size) for size in (None, 3, 2, 1)]
        half = cross_replica_mean(own.astype("bfloat16"))
        slope = jax.grad(lambda x: (cross_replica_sum(x, 3) * own).sum())(own)
        queue.enqueue((of_groups, half, slope, cross_replica_sum(one)))
        return cross_replica_sum(own)

    with devices_of(6):
        total = compile_function(f)(values)
    of_groups, half, slope, six = jax.tree.map(lambda leaf: leaf[0], queue.dequeue())
    assert np.asarray(total).tobytes() == in_order(values).tobytes()
    for size, found in zip((6, 3, 2, 1), of_groups, strict=True):
        groups = [slice(k, k + size) for k in range(0, 6, size) for _ in range(size)]
        assert found["a"].tobytes() == np.stack([in_order(values[g]) for g in groups]).tobytes()
        np.testing.assert_array_equal(found["b"][0], found["a"][:, :7])
        counts = np.stack([(values[g] > 0).sum(0) for g in groups])  # of groups: whether any
        np.testing.assert_array_equal(found["b"][1], counts if size == 6 else counts > 0)
    np.testing.assert_allclose(half.astype("float32"), [values.mean(0)] * 6, atol=2e-2)
    thirds = [in_order(values[:3])] * 3 + [in_order(values[3:])] * 3
    np.testing.assert_array_equal(slope, thirds)
    np.testing.assert_array_equal(six, [36] * 6)


def in_order(rows):
    """The sum of rows, one after the other."""
    return functools.reduce(np.add, rows)


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

    results, queue, delivered = on_devices(run, 3)
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

    _, first, second, third = on_devices(run, 2)
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

    _, arrived, _, after = on_devices(run, 2)
    np.testing.assert_array_equal(arrived, np.arange(14).reshape(7, 2))
    np.testing.assert_array_equal(after, np.arange(4).reshape(2, 2))


def test_variables_go_from_one_number_of_replicas_to_another():
    counter = keras.Variable(np.float32(0))
    seen = OutfeedQueue()

    def f():
        counter.assign_add(1.0 + replication_index())
        seen.enqueue(counter.value)
        return counter.value

    f = compile_function(f)
    for count in (2, 2, 3):
        with devices_of(count):
            f()
    assert f() == 4  # without replicas, of replica 0's value
    arrived = list(seen)
    np.testing.assert_array_equal(arrived[1], [2, 4])
    np.testing.assert_array_equal(arrived[2], [3, 4, 5])  # another number of replicas: from the 2
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

    _, (values, never) = on_devices(run, 3)
    total = np.zeros(3)
    for n in range(6):
        total += 0.5
        wants = n % 3 <= np.arange(3)
        changed = np.where(wants, total + 6.0, total)
        np.testing.assert_allclose(values[n], np.where(wants, (total + 6.0).mean(), total))
        np.testing.assert_allclose(never[n], changed)
        total = changed


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

    _, (weights, scales) = on_devices(run, 2)
    # Replica 1 leaves an update out, whose mean is infinite on replica 0, and scales by 4 then.
    np.testing.assert_array_equal(weights, [[0, 0], [-np.inf, 0], [-np.inf, -1.5]])
    np.testing.assert_array_equal(scales, [[8, 8], [8, 4], [8, 4]])


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

    found = on_devices(run, 2)
    np.testing.assert_array_equal(found[::2], [[1, 1], [2, 3], [5, 5]])
