import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat, while_loop
from millrace.api.own_loops.replication import (
    ReplicaLaunch,
    cross_replica_mean,
    cross_replica_sum,
    in_replica,
    launch_in_force,
    replicas,
    replication_index,
)
from millrace.errors import DataError, DeviceError, OptionError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue


def numbers(count):
    return [np.float32(i) for i in range(count)]


def test_each_replica_has_its_elements_and_its_variables():
    total = keras.Variable(np.float32(100.0), name="total")
    scale = keras.Variable(np.float32(2.0), name="scale")
    queue, last = OutfeedQueue(), OutfeedQueue(mode="last")

    def body(count, x):
        total.assign_add(x * scale)
        queue.enqueue({"x": x, "index": replication_index()})
        last.enqueue(total.value)
        return count + 1

    def train(n):
        return repeat(n, body, inputs=0, infeed=infeed), total + 0.0

    train = compile_function(train, replicas=4)
    with InfeedQueue(numbers(100)) as infeed:
        count, seen = train(5)
        x = np.arange(20, dtype=np.float32).reshape(5, 4)
        found = queue.dequeue()
        np.testing.assert_array_equal(found["x"], x)
        np.testing.assert_array_equal(found["index"], np.tile(np.arange(4), (5, 1)))
        expected = 100 + 2 * x.sum(0)
        np.testing.assert_array_equal(last.dequeue(), expected)
        assert (count, seen, total.value) == (5, expected[0], expected[0])  # replica 0's
        train(2)  # continues with the copies, and with the data
        x = np.arange(28, dtype=np.float32).reshape(7, 4)
        np.testing.assert_array_equal(queue.dequeue()["x"], x[5:])
        np.testing.assert_array_equal(last.dequeue(), 100 + 2 * x.sum(0))
        total.assign(0.0)  # for all of them
        train(1)
        np.testing.assert_array_equal(last.dequeue(), 2 * np.arange(28, 32))
        assert infeed.delivered == 32
    assert train.compilations == 1


def test_data_that_end_within_a_turn_end_the_loop_before_it():
    queue = OutfeedQueue()
    train = compile_function(lambda: repeat(9, queue.enqueue, infeed=infeed), replicas=2)
    with InfeedQueue(numbers(7)) as infeed, pytest.raises(DataError, match="after 7 elements"):
        train()
    np.testing.assert_array_equal(queue.dequeue(), [[0, 1], [2, 3], [4, 5]])


def test_replicas_exchange_values_in_groups_of_neighbours():
    def f(x):
        index = replication_index().astype("float32")
        gradient = jax.grad(lambda x: cross_replica_sum(x, 2) * (1 + index))(x)
        queue.enqueue(
            (
                cross_replica_sum(x * index),
                cross_replica_mean(x * index),
                cross_replica_sum(index, 2),
                cross_replica_mean({"a": index}, replica_group_size=1)["a"],
                gradient,
            )
        )
        return replicas()

    queue = OutfeedQueue()
    assert compile_function(f, replicas=4)(1.0) == 4
    sums, means, pairs, alone, gradients = (leaf[0] for leaf in queue.dequeue())
    np.testing.assert_array_equal(sums, [6] * 4)
    np.testing.assert_array_equal(means, [1.5] * 4)
    np.testing.assert_array_equal(pairs, [1, 1, 5, 5])
    np.testing.assert_array_equal(alone, [0, 1, 2, 3])
    np.testing.assert_array_equal(gradients, [3, 3, 7, 7])
    with pytest.raises(OptionError, match=r"replica_group_size=3 does not divide the 4 replicas"):
        compile_function(lambda x: cross_replica_sum(x, 3), replicas=4)(1.0)


def test_one_replica_exchanges_with_itself():
    assert compile_function(lambda: cross_replica_sum(2.0) + replication_index())() == 2
    assert cross_replica_mean(3.0) == 3
    with in_replica(3, 5):
        assert (replication_index(), replicas()) == (3, 5)
    assert (replication_index(), replicas()) == (0, 1)


def test_loops_without_queues_and_conditions_of_replicas():
    total = keras.Variable(np.zeros(2, np.float32))

    def f(limit):
        index = replication_index().astype("float32")
        # Continues as long as one replica wants to.
        turns = while_loop(lambda n: n < limit + index, lambda n: n + 1.0, inputs=0.0)
        repeat(3, lambda: (total.assign_add(keras.ops.ones(2) * index), None)[1])
        return turns, cross_replica_sum(total.value)

    turns, summed = compile_function(f, replicas=3)(2.0)
    assert turns == 4
    np.testing.assert_array_equal(summed, [9, 9])
    np.testing.assert_array_equal(total, [0, 0])


def test_nested_loops_of_replicas_exchange_with_the_host():
    queue = OutfeedQueue()

    def inner(total, x):
        queue.enqueue(x)
        return total + x

    def outer(total):
        return repeat(2, inner, inputs=total, infeed=infeed)

    train = compile_function(lambda: repeat(3, outer, inputs=0.0), replicas=2)
    with InfeedQueue(numbers(12)) as infeed:
        assert train() == 0 + 2 + 4 + 6 + 8 + 10
    np.testing.assert_array_equal(queue.dequeue(), np.arange(12).reshape(6, 2))


def test_a_while_loop_takes_no_element_that_it_does_not_use():
    body = lambda n, x: n + cross_replica_sum(x)  # noqa: E731
    stops = compile_function(lambda: while_loop(lambda n: n < 5, body, 0.0, infeed), replicas=2)
    with InfeedQueue(numbers(100)) as infeed:
        assert stops() == 6
        assert infeed.delivered == 4


def test_who_runs_a_function_says_how_many_replicas():
    train = compile_function(lambda: cross_replica_sum(jnp.float32(1)))
    assert train() == 1
    with launch_in_force.bound_to(ReplicaLaunch(jax.devices()[:3])):
        assert train() == 3
        assert repeat(2, lambda x: x + replicas(), inputs=0) == 6
        with InfeedQueue(numbers(9)) as infeed:
            assert repeat(3, lambda n, x: n + cross_replica_sum(x), 0.0, infeed) == 36
    with pytest.raises(OptionError, match="replicas"):
        compile_function(train, replicas=0)


def test_dropout_differs_between_replicas():
    layer = keras.layers.Dropout(0.5, seed=1)
    queue = OutfeedQueue()
    train = compile_function(
        lambda: repeat(2, lambda: queue.enqueue(layer(keras.ops.ones(64), training=True))),
        replicas=2,
    )
    train()
    found = queue.dequeue()
    assert found.shape == (2, 2, 64)
    assert len({leaf.tobytes() for leaf in found.reshape(4, 64)}) == 4


@pytest.mark.parametrize("replicas", [3, 9])
def test_more_replicas_than_devices_are_an_error(replicas):
    function = compile_function(lambda: 1, replicas=replicas)
    strategy = millrace.Strategy(devices=2) if replicas == 3 else None
    number = 2 if replicas == 3 else 8
    message = (
        f"{replicas} replicas of a function take a device each, and there are {number} devices. "
        f'Set replicas={number}, or use virtual devices of a CPU: millrace.Strategy("cpu:'
        f'{replicas}")'
    )
    with pytest.raises(DeviceError, match=re.escape(message)):
        function() if strategy is None else strategy.run(function)
