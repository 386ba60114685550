"""Ctrl-C in own loops: what was drawn was trained, its results are in the queue, and once only."""

import functools
import os
import signal
import threading

import keras
import numpy as np
import pytest

import millrace

MANY = 10**8


class Training:
    """A loop with queues whose data set sends Ctrl-C when it comes to one of its elements."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.sends_at = MANY
        self.infeed, self.queue = millrace.InfeedQueue(self.data), millrace.OutfeedQueue()
        self.count = keras.Variable(0)
        self.total = keras.Variable(np.zeros(1000, "float32"))
        self.rounds = keras.Variable(0)

    def data(self):
        drawn = 0
        while True:
            drawn += 1
            if drawn == self.sends_at:
                os.kill(os.getpid(), signal.SIGINT)
            yield np.ones(1000, "float32")

    def body(self, x):
        self.count.assign_add(1)
        self.total.assign_add(x)
        self.queue.enqueue(self.count.value)

    def repeat(self, n):
        self.rounds.assign_add(1)
        millrace.repeat(n, self.body, infeed=self.infeed)

    def while_loop(self, n):
        below = lambda: self.count.value < MANY  # noqa: E731
        millrace.while_loop(below, self.body, infeed=self.infeed, maximum_iterations=n)
        self.rounds.assign_add(1)

    def nested(self, n):
        millrace.repeat(n, lambda: self.repeat(3))

    def uncompiled(self, n):
        def body(x):
            millrace.api.own_loops.host_loop.require_host()
            self.body(x)

        millrace.repeat(n, body, infeed=self.infeed)


CASES = [(loop, r) for loop in ("repeat", "while_loop", "nested") for r in (0, 1, 2, 3)]


@pytest.mark.parametrize(("loop", "replicas"), [*CASES, ("uncompiled", 0), ("uncompiled", 1)])
def test_what_was_drawn_was_trained(loop, replicas):  # replicas=0: not compiled
    training = Training(max(replicas, 1))
    run = getattr(training, loop)
    if replicas:
        run = functools.partial(millrace.compile, replicas=replicas)(run)
    run(4)
    for sends_at in (500, 501, 1777):
        training.infeed.close()
        training.queue.clear()
        before = int(training.count.value)
        training.sends_at = sends_at
        with pytest.raises(KeyboardInterrupt):
            run(MANY)
        trained = int(training.count.value) - before
        found = training.queue.dequeue()  # raises nothing
        assert trained > 0
        assert training.infeed.delivered == trained * training.replicas
        numbers = before + np.arange(1, trained + 1)
        np.testing.assert_array_equal(found.reshape(trained, -1)[:, -1], numbers)
        assert float(training.total[0]) == int(training.count.value)
        training.sends_at = MANY
        run(2)
        assert training.infeed.delivered > trained * training.replicas
    training.infeed.close()


@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_a_loop_without_queues_ends_too(replicas):
    count, matrix = keras.Variable(0), keras.Variable(np.eye(100, dtype="float32"))
    late = keras.Variable(0)

    def body():
        count.assign_add(1)
        matrix.assign(keras.ops.matmul(matrix.value, matrix.value))

    def run(n):
        millrace.repeat(n, body)
        late.assign_add(1)

    if replicas:
        run = functools.partial(millrace.compile, replicas=replicas)(run)
    run(3)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(MANY)
    timer.join()
    assert int(count.value) > 3
    assert int(late.value) == 1  # not what follows the loop


def test_a_reader_in_another_thread_is_told():
    training, told = Training(1), []

    def read():
        try:
            while True:
                training.queue.dequeue(wait_for_completion=True)
        except millrace.errors.QueueError as error:
            told.append(str(error))

    training.repeat(4)
    reader = threading.Thread(target=read)
    training.sends_at = 300
    training.infeed.close()
    reader.start()
    with pytest.raises(KeyboardInterrupt):
        training.repeat(MANY)
    reader.join(10)
    assert not reader.is_alive()
    assert "ended by Ctrl-C" in told[0]
    training.infeed.close()
