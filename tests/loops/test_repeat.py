import threading
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat
from millrace.errors import DTypeError, LoopError, OptionError, TapError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue


def add_one(count):
    return count + 1


@pytest.mark.parametrize("compiled", [False, True])
def test_ten_turns_with_both_queues(compiled):
    x, y = np.ones(800, np.float32), np.ones(800, np.float32)
    queue = OutfeedQueue()

    def body(count, x, y):
        queue.enqueue({"d1": x + y, "d2": x - y})
        return count + 1

    def loop(n):
        return repeat(n, body, inputs=0, infeed=infeed)

    loop = compile_function(loop) if compiled else loop
    assert not queue.enqueued
    with InfeedQueue(lambda: iter([(x, y)] * 20)) as infeed:
        assert loop(10) == 10
        assert queue.enqueued
        found = queue.dequeue()
        assert list(found) == ["d1", "d2"]
        np.testing.assert_array_equal(found["d1"], np.full((10, 800), 2))
        np.testing.assert_array_equal(found["d2"], np.zeros((10, 800)))
        assert infeed.delivered == 10
        loop(2)
        loop(3)
        assert queue.dequeue()["d1"].shape == (5, 800)
        assert queue.dequeue()["d1"].shape == (0, 800)


def test_what_goes_round_comes_back_as_it_was_given():
    assert repeat(3, add_one, inputs=0) == 3
    assert repeat(3, add_one, inputs=[0]) == 3
    a, b = repeat(3, lambda a, b: (b, a + b), inputs=[0, 1])
    assert (int(a), int(b)) == (2, 3)
    both = repeat(3, lambda d: {"a": d["a"] + 1, "b": d["b"]}, inputs={"a": 0, "b": 1.5})
    assert (int(both["a"]), float(both["b"])) == (3, 1.5)
    pair = repeat(2, lambda p: (p[1], p[0]), inputs=[(1, 2)])
    assert tuple(map(int, pair)) == (1, 2)
    assert repeat(3, lambda: None) is None
    assert repeat(0, add_one, inputs=5) == 5


def test_numbers_become_arrays_of_32_bits():
    seen = []
    repeat(1, lambda a, b, c: (seen.append((a, b, c)), (a, b, c))[1], inputs=[1, 1.0, True])
    assert [x.dtype for x in seen[0]] == ["int32", "float32", "bool"]


def test_operations_may_follow_the_values():
    queue = OutfeedQueue()
    assert repeat(3, lambda c: (c + 1, queue.enqueue(c)), inputs=0) == 3
    np.testing.assert_array_equal(queue.dequeue(), [0, 1, 2])


@pytest.mark.parametrize("compiled", [False, True])
def test_nested_loops(compiled):
    queue = OutfeedQueue()
    with InfeedQueue([np.float32(i) for i in range(12)]) as infeed:

        def inner(total, x):
            queue.enqueue(x)
            return total + x

        def outer(total):
            return repeat(3, inner, inputs=total, infeed=infeed)

        def loop():
            return repeat(4, outer, inputs=0.0)

        loop = compile_function(loop) if compiled else loop
        assert loop() == sum(range(12))
    np.testing.assert_array_equal(queue.dequeue(), range(12))


def test_both_loops_of_a_nest_have_queues():
    outer_queue, inner_queue = OutfeedQueue(), OutfeedQueue()
    with (
        InfeedQueue([np.float32(i) for i in range(4)]) as fours,
        InfeedQueue([np.float32(i) for i in range(12)]) as twelves,
    ):

        def inner(x):
            inner_queue.enqueue(x)

        def outer(x):
            outer_queue.enqueue(x)
            repeat(3, inner, infeed=twelves)

        repeat(4, outer, infeed=fours)
        np.testing.assert_array_equal(outer_queue.dequeue(), range(4))
        np.testing.assert_array_equal(inner_queue.dequeue(), range(12))
        with pytest.raises(ValueError, match="has ended after 4 elements"):
            repeat(1, outer, infeed=fours)


def test_an_inner_loop_whose_data_ends_ends_the_outer_one():
    turns = keras.Variable(0)
    with InfeedQueue([np.float32(i) for i in range(7)]) as infeed:

        def outer():
            turns.assign_add(1)
            repeat(3, lambda total, x: total + x, inputs=0.0, infeed=infeed)

        queue = OutfeedQueue()

        def watched():
            queue.enqueue(turns.value)
            outer()

        with pytest.raises(ValueError, match="has ended after 7 elements"):
            repeat(1000, watched)
        assert turns.numpy() < 1000


@pytest.mark.parametrize("compiled", [False, True])
def test_elements_arrive_in_order_before_the_loop_is_over(compiled):
    queue, seen, over = OutfeedQueue(), [], threading.Event()

    def read():
        while len(seen) < 100 and not over.wait(0.001):
            seen.extend((time.monotonic(), float(x)) for x in queue)
        seen.extend((time.monotonic(), float(x)) for x in queue)

    def body(i, matrix):
        queue.enqueue(i)
        for _ in range(8):
            matrix = jnp.tanh(matrix @ matrix)
        return i + 1, matrix

    def loop(n):
        return repeat(n, body, inputs=[0, jnp.eye(256)])

    loop = compile_function(loop) if compiled else loop
    loop(1)  # compiled
    queue.dequeue()
    thread = threading.Thread(target=read)
    thread.start()
    jax.block_until_ready(loop(100))
    end = time.monotonic()
    over.set()
    thread.join(10)
    assert [x for _, x in seen] == list(range(100))
    assert seen[0][0] < end
    assert queue.dequeue().shape == (0,)


@pytest.mark.parametrize("compiled", [False, True])
def test_nobody_has_to_dequeue(compiled):
    queue = OutfeedQueue()
    loop = compile_function(lambda n: repeat(n, body, inputs=0))

    def body(i):
        queue.enqueue(i)
        return i + 1

    assert (loop(10_000) if compiled else repeat(10_000, body, inputs=0)) == 10_000
    np.testing.assert_array_equal(queue.dequeue(), range(10_000))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_queue_that_keeps_the_newest(compiled):
    queue = OutfeedQueue(mode="last")

    def body(i):
        queue.enqueue((i, jnp.full((4, 4), i)))
        return i + 1

    def loop():
        return repeat(20, body, inputs=0)

    assert queue.dequeue() == []
    (compile_function(loop) if compiled else loop)()
    number, matrix = queue.dequeue()
    assert number == 19
    assert matrix.shape == (4, 4)
    assert queue.dequeue()[0] == 19  # still the newest


def test_shapes_of_what_is_dequeued():
    queue = OutfeedQueue()

    def body():
        queue.enqueue((jnp.ones((4, 4)), jnp.ones(1), 3))

    repeat(20, body)
    assert [x.shape for x in queue.dequeue()] == [(20, 4, 4), (20, 1), (20,)]


def test_a_queue_takes_one_value_in_a_program():
    queue = OutfeedQueue()

    def twice():
        queue.enqueue(1.0)
        queue.enqueue(2.0)

    def two_loops():
        repeat(2, lambda: queue.enqueue(1.0))
        repeat(2, lambda: queue.enqueue(2.0))

    with pytest.raises(TapError, match="takes one value in each program"):
        repeat(3, twice)
    with pytest.raises(
        TapError, match=r"one place in each program.*a separate queue for each loop"
    ):
        compile_function(two_loops)()
    two_loops()  # two programs
    np.testing.assert_array_equal(queue.dequeue(), [1, 1, 2, 2])


def test_the_body_must_return_the_types_of_the_inputs():
    with pytest.raises(LoopError, match=r"returned \[float32\[\]\], and inputs are \[int32\[\]\]"):
        repeat(3, lambda c: c * 0.5, inputs=0)
    with pytest.raises(
        TypeError, match=r"\[int32\[\], float32\[3\]\].*\[int32\[\], float32\[2\]\]"
    ):
        repeat(3, lambda a, b: (a, jnp.ones(3)), inputs=[0, jnp.ones(2)])


def test_the_body_must_return_as_many_values():
    with pytest.raises(LoopError, match="returned 2 values, and inputs has 1"):
        repeat(3, lambda c: (c, c), inputs=0)
    with pytest.raises(LoopError, match="returned 1 values, and inputs has 0"):
        repeat(3, lambda: 5)


def test_the_body_must_take_what_it_is_given():
    with pytest.raises(LoopError, match=r"1 from inputs and 0 from the infeed.*takes 2 arguments"):
        repeat(3, lambda a, b: a, inputs=0)
    with InfeedQueue([(1.0, 2.0)]) as infeed:
        with pytest.raises(TypeError, match=r"1 from inputs and 2 from the infeed.*takes 2 arg"):
            repeat(3, lambda a, b: a, inputs=0, infeed=infeed)
        with pytest.raises(LoopError, match=r"0 from inputs and 2 from the infeed.*takes none"):
            repeat(3, lambda: None, infeed=infeed)
    with (
        InfeedQueue([{"x": 1.0}]) as infeed,
        pytest.raises(LoopError, match=r"\['x'\] by name.*takes 1 argument:"),
    ):
        repeat(3, lambda y: None, infeed=infeed)
    with pytest.raises(LoopError, match=r"body of a loop is a function. Received: 3 of type int"):
        repeat(3, 3)


@pytest.mark.parametrize("n", [-1, 1.5, "3", None, True, np.float32(2), 2**31])
def test_what_is_no_number_of_turns(n):
    with pytest.raises(OptionError, match=r"n must be .*Received"):
        repeat(n, add_one, inputs=0)


def test_numbers_of_turns():
    for n in (3, np.int64(3), np.asarray(3), jnp.int32(3)):
        assert repeat(n, add_one, inputs=0) == 3
    loop = compile_function(lambda n: repeat(n, add_one, inputs=0))
    assert [int(loop(n)) for n in (3, 7, 0)] == [3, 7, 0]
    assert loop.compilations == 1


def test_what_cannot_go_round():
    with pytest.raises(DTypeError, match=r"Received: 'text' of type str.*leave them out of inputs"):
        repeat(3, add_one, inputs="text")


def test_an_infeed_is_a_queue():
    with pytest.raises(OptionError, match=r"Received: list. Set infeed=millrace.InfeedQueue"):
        repeat(3, add_one, inputs=0, infeed=[1, 2, 3])


def test_a_body_is_traced_once_more_only_if_it_is_another():
    traces = []

    def run(step, repeats):
        def body(count):
            traces.append(step)
            return count + step

        return int(repeat(repeats, body, inputs=0))

    assert [run(1, 3), run(1, 5)] == [3, 5]  # made anew, and the same
    once = len(traces)
    run(1, 7)
    assert len(traces) == once
    assert run(2, 3) == 6  # refers to another number
    assert len(traces) == 2 * once


def test_a_global_that_is_another_object_by_now(monkeypatch):
    def body():
        of_the_module.assign_add(1.0)

    found = []
    for _ in range(2):
        monkeypatch.setitem(globals(), "of_the_module", keras.Variable(0.0))
        repeat(3, body)
        found.append(of_the_module.numpy())
    assert found == [3, 3]


of_the_module = None


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_with_queues_is_compiled_once(compiled):
    traces, queue = [], OutfeedQueue()
    total = keras.Variable(0.0)
    infeed = InfeedQueue(lambda: (np.float32(i) for i in range(100)))

    def body(x):
        traces.append(1)
        total.assign_add(x)
        queue.enqueue(x)

    def loop(n):
        repeat(n, body, infeed=infeed)

    loop = compile_function(loop) if compiled else loop
    loop(3)
    once = len(traces)
    for n in (4, 50, 1):
        loop(n)
    assert len(traces) == once
    assert total.numpy() == sum(range(58))
    infeed.close()


def test_an_exception_in_the_body_comes_out_as_it_is():
    def body(count):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        repeat(3, body, inputs=0)
    with pytest.raises(ZeroDivisionError, match="mine"):
        compile_function(lambda: repeat(3, body, inputs=0))()
    assert repeat(3, add_one, inputs=0) == 3


def test_an_error_is_raised_once_in_the_thread_of_the_loop_and_once_elsewhere():
    queue, told = OutfeedQueue(), []

    def body(x):
        queue.enqueue(x)

    def read():
        with pytest.raises(ValueError, match="has ended after 2") as error:
            queue.dequeue()
        told.append(error)

    with (
        InfeedQueue([np.float32(1), np.float32(2)]) as infeed,
        pytest.raises(ValueError, match="has ended after 2"),
    ):
        repeat(3, body, infeed=infeed)
    np.testing.assert_array_equal(list(queue), [1, 2])
    reader = threading.Thread(target=read)
    reader.start()
    reader.join(10)
    assert len(told) == 1
    assert queue.dequeue().shape == (0,)


def test_a_loop_of_a_fixed_length_is_differentiated():
    def loss(x):
        return repeat(3, lambda y: y * x, inputs=jnp.float32(1))

    assert jax.grad(loss)(2.0) == 12.0
    assert jax.jit(jax.grad(loss))(2.0) == 12.0


def test_the_memory_of_an_input_may_be_changed_afterwards():
    given = np.zeros(16, np.float32)
    result = repeat(3, lambda x: x + 1, inputs=given)
    given[:] = 100
    np.testing.assert_array_equal(result, np.full(16, 3))
