import threading
import time

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat, while_loop
from millrace.errors import DataError, LoopError, OptionError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue


def add_one(count):
    return count + 1


@pytest.mark.parametrize("compiled", [False, True])
def test_it_goes_on_while_the_condition_holds(compiled):
    def loop(end):
        return while_loop(lambda c: c < end, add_one, inputs=0)

    loop = compile_function(loop) if compiled else loop
    assert loop(7) == 7
    assert loop(0) == 0


def test_the_condition_sees_what_goes_round_and_variables():
    total = keras.Variable(0.0)

    def body(a, b):
        total.assign_add(a)
        return a + 1.0, b

    a, b = while_loop(lambda a, b: total < b, body, inputs=[0.0, 10.0])
    assert (float(a), float(b), total.numpy()) == (5.0, 10.0, 10.0)
    assert while_loop(lambda: total < 13, lambda: (total.assign_add(1.0), None)[1]) is None
    assert total.numpy() == 13


@pytest.mark.parametrize("queues", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_maximum_iterations(compiled, queues):
    queue = OutfeedQueue()

    def body(count):
        if queues:
            queue.enqueue(count)
        return count + 1

    def loop(most):
        return while_loop(lambda c: c < 100, body, inputs=0, maximum_iterations=most)

    loop = compile_function(loop) if compiled else loop
    assert [int(loop(n)) for n in (5, 0, 1000)] == [5, 0, 100]
    if queues:
        assert len(queue.dequeue()) == 105
    with pytest.raises(OptionError, match="maximum_iterations must be at least 0"):
        while_loop(lambda c: True, body, inputs=0, maximum_iterations=-1)


@pytest.mark.parametrize("compiled", [False, True])
def test_elements_that_were_prepared_and_not_used_stay_in_the_infeed(compiled):
    seen = keras.Variable(0.0)

    def body(count, x):
        seen.assign_add(x)
        return count + 1

    def loop(end):
        return while_loop(lambda c: c < end, body, inputs=0, infeed=infeed)

    loop = compile_function(loop) if compiled else loop
    with InfeedQueue([np.float32(i) for i in range(2000)]) as infeed:
        used = 0
        for end in (37, 1, 0, 500):
            assert loop(end) == end
            used += end
            assert infeed.delivered == used
            assert seen.numpy() == sum(range(used))
        assert repeat(1, lambda _, x: x, inputs=0.0, infeed=infeed) == used


@pytest.mark.parametrize("compiled", [False, True])
def test_the_last_element_may_end_the_loop(compiled):
    def loop(end):
        return while_loop(lambda c: c < end, lambda c, x: c + 1, inputs=0, infeed=infeed)

    loop = compile_function(loop) if compiled else loop
    with InfeedQueue([np.float32(i) for i in range(10)]) as infeed:
        assert loop(10) == 10
        with pytest.raises(DataError, match="has ended after 10 elements"):
            loop(1)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_without_end_ends_with_its_data(compiled):
    def loop():
        return while_loop(lambda c: c >= 0, lambda c, x: c + 1, inputs=0, infeed=infeed)

    with (
        InfeedQueue([np.float32(i) for i in range(300)]) as infeed,
        pytest.raises(DataError, match="has ended after 300 elements"),
    ):
        (compile_function(loop) if compiled else loop)()


def test_elements_arrive_while_it_runs():
    queue, seen, over = OutfeedQueue(), [], threading.Event()

    def body(count, matrix):
        queue.enqueue(count)
        for _ in range(8):
            matrix = jnp.tanh(matrix @ matrix)
        return count + 1, matrix

    def loop(n):
        return while_loop(lambda c, _: c < n, body, inputs=[0, jnp.eye(256)])

    def read():
        while not over.wait(0.001):
            seen.extend((time.monotonic(), float(x)) for x in queue)

    loop(jnp.int32(100))
    queue.dequeue()
    thread = threading.Thread(target=read)
    thread.start()
    loop(jnp.int32(100))
    end = time.monotonic()
    time.sleep(0.05)
    over.set()
    thread.join(10)
    assert [x for _, x in seen] == list(range(100))
    assert seen[0][0] < end


def test_a_while_loop_in_a_repeat():
    def body(total):
        return while_loop(lambda t: t % 5 != 0, add_one, inputs=total + 1)

    assert repeat(3, body, inputs=0) == 15


def test_the_condition_must_be_one_truth_value():
    with pytest.raises(LoopError, match=r"condition of a loop returned int32\[\], and not one tr"):
        while_loop(lambda c: c, add_one, inputs=0)
    with pytest.raises(LoopError, match=r"returned bool\[3\].*keras.ops.all"):
        while_loop(lambda c: c < 1, add_one, inputs=jnp.zeros(3))
    with pytest.raises(LoopError, match=r"condition of a loop.*1 from inputs.*takes 2 arguments"):
        while_loop(lambda a, b: True, add_one, inputs=0)
    with pytest.raises(LoopError, match=r"The condition of a loop is a function. Received: None"):
        while_loop(None, add_one, inputs=0)
