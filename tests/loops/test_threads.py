"""Loops in several threads: no thread waits for what another one traces or runs."""

import threading

import jax.numpy as jnp
import keras
import numpy as np

from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

SECONDS = 60  # until a test gives up; none of them takes that long where nothing waits


def in_threads(*functions):
    """Runs functions at the same time and returns their results, in order."""
    results, errors = [None] * len(functions), []

    def call(index, function):
        try:
            results[index] = function()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=each, daemon=True) for each in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return results


def meeting():
    """Two functions; each returns whether the other one was called before it returned."""
    events = threading.Event(), threading.Event()

    def meet(own, other):
        events[own].set()
        return events[other].wait(SECONDS)

    return (lambda: meet(0, 1)), (lambda: meet(1, 0))


def test_two_threads_trace_their_bodies_at_the_same_time():
    def loop(meet, step):
        met = []

        def body(count):
            met.append(meet())
            return count + step

        return int(repeat(3, body, inputs=0)), all(met)

    first, second = meeting()
    found = in_threads(lambda: loop(first, 1), lambda: loop(second, 2))
    assert found == [(3, True), (6, True)]


def test_two_threads_run_loops_with_queues_at_the_same_time():
    class Meeting(OutfeedQueue):
        def receive(self, value, elements):
            met.append(self.meet())
            super().receive(value, elements)

    met = []

    def loop(meet):
        queue = Meeting()
        queue.meet = meet

        def body(count):
            queue.enqueue(count)
            return count + 1

        repeat(4, body, inputs=0)
        return queue.dequeue().tolist()

    first, second = meeting()
    assert in_threads(lambda: loop(first), lambda: loop(second)) == [[0, 1, 2, 3]] * 2
    assert all(met)


def test_a_body_that_itself_calls_repeat():
    def inner(count):
        return count + 1

    def body(count):
        return repeat(2, inner, inputs=count)

    assert int(repeat(3, body, inputs=0)) == 6
    assert in_threads(*[lambda: int(repeat(3, body, inputs=0))] * 2) == [6, 6]


def test_a_body_calls_a_loop_that_another_thread_runs():
    def inner(count):
        return count + 1

    def body(count):
        # Python code of a body runs on the host, in any thread, while the body is traced.
        (count_there,) = in_threads(lambda: int(repeat(2, inner, inputs=0)))
        return count + count_there

    assert int(repeat(3, body, inputs=0)) == 6


def test_one_loop_in_several_threads_loses_no_update():
    total = keras.Variable(0.0)

    def body(count):
        total.assign(total + 1.0)
        return count + 1

    def run():
        return [int(repeat(5, body, inputs=0)) for _ in range(20)]

    assert in_threads(*[run] * 4) == [[5] * 20] * 4
    assert float(total.value) == 4 * 20 * 5


def test_one_compiled_function_in_several_threads_loses_no_update():
    total = keras.Variable(0.0)

    @compile_function
    def add(x):
        total.assign(total + jnp.sum(x))
        return total.value

    def run():
        for _ in range(20):
            add(np.ones(3, np.float32))

    in_threads(*[run] * 4)
    assert float(total.value) == 4 * 20 * 3
    assert add.compilations == 1


def test_one_loop_with_an_infeed_in_several_threads_takes_each_element_once():
    with InfeedQueue([np.float32(k) for k in range(60)]) as infeed:
        total = keras.Variable(0.0)

        def body(x):
            total.assign(total + x)

        def run():
            for _ in range(5):
                repeat(3, body, infeed=infeed)

        in_threads(*[run] * 4)
    assert float(total.value) == sum(range(60))


def test_a_body_that_fails_in_one_thread_is_traced_again_in_the_next():
    fails = [True]

    def body(count):
        if fails and fails.pop():
            raise RuntimeError("once")
        return count + 1

    def run():
        try:
            return int(repeat(2, body, inputs=0))
        except RuntimeError:
            return "failed"

    assert run() == "failed"
    assert in_threads(run, run) == [2, 2]
