"""Functions that are cut at their loops: what comes before, between and after, and refusals."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.replication import cross_replica_sum, replication_index
from millrace.errors import DataError, ModelError, UnsupportedError


def numbers(count):
    return [np.float32(i) for i in range(count)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_values_go_from_piece_to_piece(replicas):
    total, scale = keras.Variable(np.float32(0)), keras.Variable(np.float32(3))
    first, second = millrace.OutfeedQueue(), millrace.OutfeedQueue()
    table = jnp.arange(4, dtype="float32")  # a constant of the function

    def train(n, x, add):
        own = x + replication_index()
        start = keras.ops.sum(own) * scale  # before the first loop, and used by the last one

        def body(carried, element):
            total.assign_add(element + own[0])
            first.enqueue(total.value)
            return carried + element

        carried = millrace.repeat(n, body, inputs=0.0, infeed=infeed)
        scale.assign(carried + 1.0)
        longest = keras.ops.cast(carried, "int32") % 3 + 2  # the limit is computed

        def again(element):
            second.enqueue({"e": element + scale, "table": table})

        millrace.repeat(longest, again, infeed=infeed)
        return start, carried, {"add": add + 1, "fixed": 5, "sum": cross_replica_sum(own)}

    train = millrace.compile(train, replicas=replicas)
    x = np.arange(3, dtype="float32")
    with millrace.InfeedQueue(numbers(200)) as infeed:
        start, carried, others = train(4, x, 7)
        elements = np.arange(4 * replicas).reshape(4, replicas)
        sums = elements.sum(0)
        assert (float(start), float(carried)) == (9.0, sums[0])
        assert (int(others["add"]), int(others["fixed"])) == (8, 5)
        np.testing.assert_array_equal(others["sum"], sum(x + r for r in range(replicas)))
        expected = (elements + np.arange(replicas)).cumsum(0)
        np.testing.assert_array_equal(first.dequeue().reshape(4, replicas), expected)
        limit = max(int(each) % 3 + 2 for each in sums)
        found = second.dequeue()
        rest = np.arange(4 * replicas, (4 + limit) * replicas).reshape(limit, replicas)
        np.testing.assert_array_equal(found["e"].reshape(limit, replicas), rest + sums + 1)
        np.testing.assert_array_equal(found["table"].reshape(-1, 4)[0], np.arange(4))
        assert float(scale) == sums[0] + 1
        train(1, x, 7)
        assert train.compilations == 1


def test_a_loop_around_loops_with_queues():
    queue, sums = millrace.OutfeedQueue(), millrace.OutfeedQueue()
    weight = keras.Variable(np.float32(0))

    def inner(total, x):
        weight.assign_add(x)
        queue.enqueue(x)
        return total + x

    def outer(total, y):
        start = y * 2
        inside = millrace.while_loop(lambda t: t < 5.0, inner, 0.0, infeed)
        sums.enqueue(inside + start)
        return total + inside

    def run():
        return millrace.while_loop(lambda t: t < 20.0, outer, 0.0, others)

    results = []
    for call in (run, millrace.compile(run)):
        weight.assign(0.0)
        with (
            millrace.InfeedQueue([np.float32(2)] * 50) as infeed,
            millrace.InfeedQueue(numbers(50)) as others,
        ):
            # Each inner loop takes three elements, and each turn of the outer one six.
            assert float(call()) == 24.0
            assert (infeed.delivered, others.delivered, float(weight)) == (12, 4, 24.0)
        assert queue.dequeue().shape == (12,)
        results.append(sums.dequeue())
        np.testing.assert_array_equal(results[-1], 6 + 2 * np.arange(4))


def test_what_follows_a_loop_that_ended_early_does_not_run():
    total, before, after = (keras.Variable(np.float32(0)) for _ in range(3))
    queue = millrace.OutfeedQueue()

    def body(x):
        total.assign_add(x)
        queue.enqueue(x)

    def run(n):
        before.assign_add(1.0)
        millrace.repeat(n, body, infeed=infeed)
        after.assign_add(1.0)

    run = millrace.compile(run)
    with millrace.InfeedQueue(numbers(6)) as infeed:
        run(2)
        with pytest.raises(DataError, match="after 6 elements"):
            run(9)
    assert [float(v) for v in (total, before, after)] == [15, 2, 1]
    np.testing.assert_array_equal(queue.dequeue(), np.arange(6))


def test_compiled_functions_and_jitted_ones_around_a_loop():
    total = keras.Variable(np.float32(0))

    def body(x):
        total.assign_add(x)

    inner = millrace.compile(lambda n: millrace.repeat(n, body, infeed=infeed))

    @millrace.compile
    def outer(n):
        inner(n)
        total.assign(total * 10)
        inner(1)
        return total.value

    with millrace.InfeedQueue(numbers(9)) as infeed:
        assert float(outer(3)) == 33
        assert infeed.delivered == 4
        add_up = jax.jit(lambda y: millrace.repeat(2, lambda c, x: c + x, y, infeed) * 2)
        assert float(millrace.compile(lambda: add_up(total.value) + 1)()) == 2 * (33 + 4 + 5) + 1


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda run, y: keras.ops.cond(y > 0, run, lambda: 0.0), "branch of keras.ops.cond"),
        (lambda run, y: jax.lax.cond(y > 0, lambda: run(), lambda: 0.0), "'cond' of JAX"),
        (lambda run, y: jax.lax.scan(lambda c, _: (c + run(), None), y, None, 3)[0], "'scan' of"),
        (lambda run, y: jax.grad(run)(y), "a gradient"),
        (lambda run, y: jax.vmap(run)(jnp.ones(2)), "jax.vmap"),
    ],
)
def test_places_that_the_host_cannot_reach(call, place):
    def run(start=0.0):
        return millrace.repeat(2, lambda c, x: c + x, start, infeed)

    with millrace.InfeedQueue(numbers(99)) as infeed:
        with pytest.raises(UnsupportedError, match=place):
            millrace.compile(lambda y: call(run, y))(1.0)
        with pytest.raises(UnsupportedError, match="function of JAX"):
            jax.jit(run)()
        with pytest.raises(UnsupportedError, match="function of JAX"):
            jax.jit(millrace.compile(run))()
        with pytest.raises(ModelError, match="not a single program"):
            millrace.compile(run).lower()


def test_a_function_of_jax_is_traced_anew_in_each_program():
    variable = keras.Variable(np.float32(3))
    jitted = jax.jit(lambda y: millrace.repeat(2, lambda c: c + variable, y))
    first, second = (millrace.compile(lambda y, n=n: jitted(y) * n) for n in (1, 2))
    assert (first(1.0), second(1.0)) == (7, 14)
    variable.assign(5.0)
    assert (first(1.0), second(1.0), first(2.0)) == (11, 22, 12)


def test_a_loop_with_queues_in_a_layer_of_fit(strategy):
    class Looped(keras.layers.Layer):
        def call(self, x):
            return x + millrace.repeat(2, lambda c, e: c + e, 0.0, infeed)

    with strategy.scope():
        model = keras.Sequential([Looped(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 1), np.float32)
    message = "is driven by the host, and this one is in a func"
    # Of Keras, around ours.
    with millrace.InfeedQueue(numbers(9)) as infeed, pytest.raises(RuntimeError, match=message):
        model.fit(x, x, verbose=0)


def test_other_options_of_jax_trace_it_anew():
    total = keras.Variable(np.float32(0))

    def add(x):
        total.assign_add(x)

    run = millrace.compile(lambda x: (millrace.repeat(2, add, infeed=infeed), x / 3)[1])
    with millrace.InfeedQueue(numbers(9)) as infeed:
        assert run(np.float32(1)).dtype == "float32"
        with jax.enable_x64(True):
            assert run(np.float64(1)).dtype == "float64"
        assert run(np.float32(1)).dtype == "float32"
    assert float(total) == 15


def test_the_log_names_the_pieces(strategy):
    total = keras.Variable(np.float32(0))

    def step(x):
        total.assign_add(x)

    @millrace.compile
    def trained_in_pieces(y):
        y = y * 2
        millrace.repeat(2, step, infeed=infeed)
        return y + total

    with millrace.InfeedQueue(numbers(20)) as infeed:
        for shape in ((3,), (3,), (4,)):
            strategy.run(trained_in_pieces, [np.ones(shape, np.float32)])
    records = [each for each in strategy.compile_log if each.is_executable]
    name = "trained_in_pieces"
    names = [name, f"repeat of step in {name}", f"{name}, part 3"]
    assert [each.program for each in records] == 2 * names
    assert {each.cause for each in records[:3]} == {"first compilation"}
    assert {each.cause for each in records[3:]} == {"argument y: shape (3,) -> (4,)"}
    assert strategy.statistics().switches == 0
