import logging
import threading
import time

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError, QueueError, TapError
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import collecting
from own_threads import own_threads

pytestmark = pytest.mark.quick

SECONDS = 60  # that no wait takes


class Enqueue(keras.layers.Layer):
    """Enqueues what `make` makes of the inputs, and hands them on."""

    def __init__(self, queue, make=lambda x: x):
        super().__init__()
        self.queue, self.make = queue, make

    def call(self, x):
        self.queue.enqueue(self.make(x))
        return x


def build(strategy, *layers, steps_per_execution=1):
    with strategy.scope():
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


def numbered(steps, rows=4, width=4):
    """Batches of which all elements are the number of their step."""
    x = np.repeat(np.arange(steps, dtype="float32"), rows)[:, None] * np.ones(width, "float32")
    return x, np.zeros((steps * rows, 1), "float32")


def fit(model, steps, rows=4, **kwargs):
    return model.fit(*numbered(steps, rows), batch_size=rows, shuffle=False, verbose=0, **kwargs)


# What comes out


@pytest.mark.parametrize("steps_per_execution", [1, 5, 7, 20])
def test_each_step_leaves_an_element(strategy, steps_per_execution):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue), steps_per_execution=steps_per_execution)
    fit(model, 20)
    np.testing.assert_array_equal(queue.dequeue(), numbered(20)[0].reshape(20, 4, 4))


def test_mode_last_keeps_the_newest_element(strategy):
    queue = OutfeedQueue("last")
    model = build(strategy, Enqueue(queue), steps_per_execution=8)
    fit(model, 20)
    for _ in range(2):  # it stays until there is a newer one
        np.testing.assert_array_equal(queue.dequeue(), np.full((4, 4), 19.0))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_an_element_for_each_micro_batch(strategy, accumulation):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue), steps_per_execution=8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    fit(model, 22)  # the last window is shorter
    np.testing.assert_array_equal(queue.dequeue()[:, 0, 0], np.arange(22))


def test_evaluate_and_predict_leave_elements_too(strategy):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue), steps_per_execution=4)
    x, y = numbered(10)
    model.evaluate(x, y, batch_size=4, verbose=0)
    np.testing.assert_array_equal(queue.dequeue()[:, 0, 0], np.arange(10))
    model.predict(x, batch_size=4, verbose=0)
    np.testing.assert_array_equal(queue.dequeue()[:, 0, 0], np.arange(10))
    model.train_on_batch(x[:4] + 1, y[:4])
    np.testing.assert_array_equal(queue.dequeue(), np.ones((1, 4, 4)))


def test_steps_that_must_be_unrolled(strategy):
    queue = OutfeedQueue()
    layers = keras.layers.Reshape((2, 2, 1)), keras.layers.Conv2D(1, 2), keras.layers.Flatten()
    model = build(strategy, Enqueue(queue), *layers, steps_per_execution=10)
    fit(model, 23)
    np.testing.assert_array_equal(queue.dequeue()[:, 0, 0], np.arange(23))


def test_asynchronous_callbacks_and_a_queue(strategy):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue), steps_per_execution=20)
    model.set_asynchronous_callbacks(True)
    fit(model, 40)
    np.testing.assert_array_equal(queue.dequeue()[:, 0, 0], np.arange(40))


def test_structures_come_out_as_they_went_in(strategy):
    queue = OutfeedQueue()
    tree = Enqueue(queue, lambda x: {"z": x, "a": (x[0], [x[0, 0]]), "number": 3})
    fit(build(strategy, tree), 5)
    found = queue.dequeue()
    assert list(found) == ["z", "a", "number"]  # JAX would sort them
    assert found["z"].shape == (5, 4, 4)
    assert isinstance(found["a"], tuple)
    np.testing.assert_array_equal(found["a"][1][0], np.arange(5))
    np.testing.assert_array_equal(found["number"], [3] * 5)


def test_what_was_dequeued_is_gone(strategy):
    queue = OutfeedQueue()
    assert queue.dequeue() == []
    assert not queue.enqueued
    fit(build(strategy, Enqueue(queue, lambda x: {"x": x})), 3)
    assert queue.enqueued
    assert queue.dequeue()["x"].shape == (3, 4, 4)
    assert queue.dequeue()["x"].shape == (0, 4, 4)


def test_a_callback_dequeues_what_its_batch_left(strategy):
    queue, seen = OutfeedQueue(), []
    model = build(strategy, Enqueue(queue, lambda x: x[0, 0]), steps_per_execution=4)
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(list(queue.dequeue()))
    )
    fit(model, 10, callbacks=[callback])
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_two_queues_of_one_program(strategy):
    first, second = OutfeedQueue(), OutfeedQueue("last")
    fit(build(strategy, Enqueue(first), keras.layers.Dense(2), Enqueue(second)), 6)
    assert first.dequeue().shape == (6, 4, 4)
    assert second.dequeue().shape == (4, 2)


# Reading while a program runs


def test_another_thread_reads_elements_in_order_before_fit_returns(strategy):
    queue, steps, seen, ended = OutfeedQueue(), 3000, [], threading.Event()
    model = build(strategy, Enqueue(queue, lambda x: x[0, 0]), steps_per_execution=steps)
    fit(model, steps)  # compiles, and finds out how long a step takes
    queue.dequeue()

    def read():
        begin = time.perf_counter()
        while len(seen) < steps and time.perf_counter() - begin < SECONDS:
            seen.extend((int(element), ended.is_set()) for element in queue)
            time.sleep(0.001)

    reader = threading.Thread(target=read)
    reader.start()
    fit(model, steps)
    ended.set()
    reader.join(SECONDS)
    assert [number for number, _ in seen] == list(range(steps))
    assert not seen[0][1]


def test_another_thread_waits_for_completion_if_it_wants(strategy):
    queue, found = OutfeedQueue(), []
    model = build(strategy, Enqueue(queue, lambda x: x[0, 0]), steps_per_execution=10)
    reader = threading.Thread(target=lambda: found.append(queue.dequeue(wait_for_completion=True)))
    fit(model, 10)
    reader.start()
    reader.join(SECONDS)
    assert list(found[0]) == list(range(10))


def test_elements_may_have_different_shapes_one_by_one(strategy):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue))
    x, y = numbered(3)
    model.fit(x[:-1], y[:-1], batch_size=4, shuffle=False, verbose=0)  # 3 rows in the last
    with pytest.raises(QueueError, match=r"\(3, 4\).*\(4, 4\).*drop_remainder=True"):
        queue.dequeue()
    model.fit(x[:-1], y[:-1], batch_size=4, shuffle=False, verbose=0)
    assert [element.shape for element in queue] == [(4, 4), (4, 4), (3, 4)]


# What nobody reads


def test_ten_thousand_elements_wait_for_their_reader(strategy):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue, lambda x: x[0]), steps_per_execution=1000)
    fit(model, 10_000, rows=1)
    assert queue.dropped == 0
    np.testing.assert_array_equal(queue.dequeue()[:, 0], np.arange(10_000))


def test_beyond_max_bytes_the_oldest_are_dropped_with_one_warning(strategy, caplog):
    queue = OutfeedQueue(max_bytes=50 * 64)  # elements of 64 bytes
    model = build(strategy, Enqueue(queue), steps_per_execution=10)
    with caplog.at_level(logging.WARNING, logger="millrace"):
        fit(model, 200)
    (message,) = [r.getMessage() for r in caplog.records if "outfeed" in r.getMessage()]
    assert "max_bytes=3200" in message
    assert "Dequeue more often, set mode='last'" in message
    left = queue.dequeue()[:, 0, 0]
    assert 0 < len(left) <= 50
    assert len(left) + queue.dropped == 200
    np.testing.assert_array_equal(left, np.arange(200 - len(left), 200))


def test_an_element_that_was_read_is_not_counted_as_dropped():
    queue = OutfeedQueue(max_bytes=32)  # two parts of 16 bytes

    def arrive(first):
        queue.expect()
        queue.receive(np.arange(first, first + 4, dtype=np.float32), 4)

    arrive(0)
    elements = iter(queue)
    assert [next(elements), next(elements), next(elements)] == [0, 1, 2]
    arrive(4)
    assert queue.dropped == 0
    arrive(8)
    assert queue.dropped == 1
    np.testing.assert_array_equal(queue.dequeue(), np.arange(4, 12))


# Elements of 64 KiB, of which four and more in a call go into blocks.


def arrive(queue, *numbers, width=2**14):
    queue.expect()
    value = np.repeat(np.float32(numbers), width).reshape(-1, width)
    queue.receive({"a": value, "b": np.float32(numbers)}, len(numbers))


def first_of(elements):
    np.testing.assert_array_equal(elements["a"][:, -1], elements["b"])
    return elements["b"].tolist()


def test_large_elements_come_in_their_order():
    queue = OutfeedQueue()
    for number in range(0, 40, 4):
        arrive(queue, *range(number, number + 4))
    arrive(queue, 40)  # a small result
    for number in range(41, 81, 4):
        arrive(queue, *range(number, number + 4))
    taken = queue.dequeue()
    assert first_of(taken) == list(range(81))
    arrive(queue, *range(8))
    assert first_of(taken) == list(range(81))  # nobody writes to it
    assert first_of(queue.dequeue()) == list(range(8))


def test_large_elements_are_read_while_others_arrive():
    queue = OutfeedQueue()
    arrive(queue, *range(8))
    elements, read = iter(queue), []
    for number in range(8, 80, 8):
        for _, element in zip(range(5), elements, strict=False):
            read.append(element["b"].item())
        arrive(queue, *range(number, number + 8))
    read += [element["b"].item() for element in elements]
    assert read == list(range(80))
    assert queue.dequeue()["b"].shape == (0,)


def test_large_elements_of_other_shapes_are_kept_apart():
    queue = OutfeedQueue()
    arrive(queue, *range(8))
    arrive(queue, *range(8), width=2**13)
    assert [element["a"].shape for element in queue] == [(2**14,)] * 8 + [(2**13,)] * 8


@pytest.mark.parametrize("calls", [1, 4, 16])
def test_the_oldest_of_large_elements_are_dropped(calls):
    kept = 2**22 // (2**16 + 4)  # of max_bytes
    queue = OutfeedQueue(max_bytes=2**22)
    for number in range(0, 512, calls):
        arrive(queue, *range(number, number + calls))
    left = first_of(queue.dequeue())
    assert left == list(range(512 - len(left), 512))
    assert kept - max(calls, kept // 16 + 1) <= len(left) <= kept
    assert len(left) + queue.dropped == 512


# What cannot be


def test_a_second_value_in_one_program(strategy):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue), Enqueue(queue))
    with pytest.raises(
        TapError, match="takes one value in each program, and received a second one"
    ):
        fit(model, 3)
    assert not own_threads("millrace-outfeed")


def test_a_value_outside_of_a_program():
    with pytest.raises(TapError, match=r"no program is being traced.*of a model that a strategy"):
        OutfeedQueue().enqueue(np.ones(3))


class InLoop(Enqueue):
    def call(self, x):
        return keras.ops.map(super().call, x)


def test_a_value_of_a_loop_within_the_step(strategy):
    model = build(strategy, InLoop(OutfeedQueue()))
    with pytest.raises(TapError, match=r"within the step.*Enqueue the value after the loop"):
        fit(model, 3)


def test_the_newest_of_nothing():
    queue = OutfeedQueue("last")
    assert queue.dequeue() == []
    collecting(lambda: queue.enqueue(np.ones(3)))()  # a program that has not run yet
    with pytest.raises(QueueError, match=r"Nothing has arrived .* Run a program that enqueues"):
        queue.dequeue()
    with pytest.raises(
        QueueError, match=r"cannot be iterated. Call dequeue\(\), or set mode='all'"
    ):
        iter(queue)


def test_options_out_of_range():
    with pytest.raises(OptionError, match=r"mode must be one of \['all', 'last'\]"):
        OutfeedQueue("some")
    with pytest.raises(OptionError, match="max_bytes"):
        OutfeedQueue(max_bytes=0)
    assert "'last'" in repr(OutfeedQueue("last"))


# When something fails


class UnreadableError(Exception):
    pass


def test_an_exception_in_a_layer_keeps_its_type(strategy):
    fails = []

    def make(x):
        if fails:
            raise UnreadableError("no")
        return x

    model = build(strategy, Enqueue(OutfeedQueue(), make))
    fit(model, 3)  # what fails while a model is built, Keras wraps
    fails.append(True)
    with pytest.raises(UnreadableError):
        fit(model, 3, rows=2)
    assert not own_threads("millrace-outfeed")


def test_an_exception_in_a_callback_keeps_its_type_and_ends_the_thread(strategy):
    queue = OutfeedQueue()
    model = build(strategy, Enqueue(queue), steps_per_execution=2)

    def fail(batch, logs):
        if batch >= 3:
            assert own_threads("millrace-outfeed")
            raise UnreadableError("no")

    with pytest.raises(UnreadableError):
        fit(model, 20, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)])
    assert not own_threads("millrace-outfeed")
    assert queue.dequeue()[:, 0, 0].tolist() == [0, 1, 2, 3]
    fit(model, 4)
    assert queue.dequeue()[:, 0, 0].tolist() == [0, 1, 2, 3]


def test_whoever_waits_is_told_why_nothing_comes():
    queue, found = OutfeedQueue(), []
    queue.expect()

    def read():
        try:
            queue.dequeue(wait_for_completion=True)
        except UnreadableError as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    queue.fail(UnreadableError("the device is gone"))
    reader.join(SECONDS)
    assert [str(error) for error in found] == ["the device is gone"]


# Replicas


@pytest.mark.parametrize("mode", ["all", "last"])
def test_replicas_have_an_axis_of_their_own(mode):
    queue = OutfeedQueue(mode)
    model = build(millrace.Strategy(devices=2), Enqueue(queue), steps_per_execution=8)
    fit(model, 40)  # 20 rounds of two steps
    shape = (20, 2, 4, 4) if mode == "all" else (2, 4, 4)
    whole = numbered(40)[0].reshape(20, 2, 4, 4)
    found = queue.dequeue()
    assert found.shape == shape
    np.testing.assert_array_equal(found, whole if mode == "all" else whole[-1])
