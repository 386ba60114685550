import gc
import logging
import time
import traceback

import jax.numpy as jnp
import keras
import numpy as np
import pytest

from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat
from millrace.errors import DataError, OptionError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from own_threads import own_threads


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    if own_threads("millrace-infeed"):
        gc.collect()
    assert wait_until(lambda: not own_threads("millrace-infeed"))


def drawn(queue, number):
    """The elements that a loop gets, in order."""
    seen = []
    while len(seen) < number:
        segment = queue.take(number - len(seen))
        rows = range(segment.start, segment.start + segment.count)
        seen += [segment.block.batches[i] for i in rows]
    return seen


def adding(total):
    def body(x):
        total.assign_add(x)

    return body


def nothing(x):
    del x


def numbers(count, dtype=np.float32):
    return [np.asarray(i, dtype) for i in range(count)]


def test_elements_come_in_order_and_go_on_where_the_last_run_ended():
    total = keras.Variable(0.0)
    with InfeedQueue(numbers(100)) as queue:
        order = repeat(10, lambda last, x: x, inputs=0.0, infeed=queue)
        assert float(order) == 9.0
        repeat(5, adding(total), infeed=queue)
        assert total.numpy() == 10 + 11 + 12 + 13 + 14
        assert queue.delivered == 15


def test_two_programs_take_turns_with_one_queue():
    with InfeedQueue(numbers(100)) as queue:
        add = compile_function(
            lambda n: repeat(n, lambda total, x: total + x, inputs=0.0, infeed=queue)
        )
        last = compile_function(lambda n: repeat(n, lambda _, x: x, inputs=0.0, infeed=queue))
        assert [float(f(2)) for f in (add, last, add, last)] == [0 + 1, 3, 4 + 5, 7]


def test_tuples_dicts_and_single_arrays_reach_the_body():
    x, y = np.ones(3, np.float32), np.full(3, 2, np.float32)
    with InfeedQueue([(x, y)]) as queue:
        assert repeat(1, lambda c, a, b: c + (b - a).sum(), inputs=0.0, infeed=queue) == 3
    with InfeedQueue([{"y": y, "x": x}]) as queue:
        assert repeat(1, lambda c, *, x, y: c + (y - x).sum(), inputs=0.0, infeed=queue) == 3
    with InfeedQueue([({"y": y, "x": x},)]) as queue:  # a dict in a tuple is one argument
        assert repeat(1, lambda c, d: c + (d["y"] - d["x"]).sum(), inputs=0.0, infeed=queue) == 3
    with InfeedQueue([[x, y]]) as queue:  # as a DataLoader gives it
        assert repeat(1, lambda c, a, b: c + (b - a).sum(), inputs=0.0, infeed=queue) == 3


def test_functions_generators_and_datasets_of_keras():
    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.float32(index)

    assert list(map(float, drawn(InfeedQueue(lambda: numbers(3)), 3))) == [0, 1, 2]
    assert list(map(float, drawn(InfeedQueue(iter(numbers(3))), 3))) == [0, 1, 2]
    assert list(map(float, drawn(InfeedQueue(Data()), 3))) == [0, 1, 2]
    assert list(map(float, drawn(InfeedQueue(jnp.arange(3.0)), 3))) == [0, 1, 2]


def test_a_buffer_that_is_filled_again_does_not_change_what_is_queued():
    def data():
        buffer = np.zeros(1000, np.float32)
        for i in range(200):
            buffer[:] = i
            yield buffer

    with InfeedQueue(data()) as queue:
        time.sleep(0.2)
        assert [float(x.min()) for x in drawn(queue, 200)] == list(range(200))


def test_it_looks_ahead_no_further_than_its_depth():
    made = []

    def data():
        for i in range(1000):
            made.append(i)
            yield np.zeros(2**18, np.float32)  # 1 MiB: a block of its own

    with InfeedQueue(data(), prefetch_depth=3) as queue:
        queue.take(1)
        time.sleep(0.3)
        # The one that was taken, three that are ready, and one that waits for room.
        assert len(made) == 5


@pytest.mark.parametrize("depth", [0, 256, -1, True, 1.5, "2"])
def test_depths_from_1_to_255(depth):
    with pytest.raises(OptionError, match="prefetch_depth must be"):
        InfeedQueue([], prefetch_depth=depth)
    InfeedQueue([], prefetch_depth=1)
    InfeedQueue([], prefetch_depth=255)


def test_what_cannot_be_iterated():
    with pytest.raises(DataError, match=r"takes an iterable.*Received: 3 of type int"):
        InfeedQueue(3)


def test_shapes_that_are_not_fully_defined():
    class Spec:
        shape = (None, 4)

        def __str__(self):
            return "TensorSpec(shape=(None, 4))"

    class Dataset:
        element_spec = Spec()

        def __iter__(self):
            return iter([])

    with pytest.raises(DataError, match=r"TensorSpec\(shape=\(None, 4\)\).*drop_remainder=True"):
        InfeedQueue(Dataset())


def test_an_element_of_another_shape_names_it_and_both_shapes():
    data = [*numbers(3), np.zeros(2, np.float32)]
    total = keras.Variable(0.0)
    with (
        InfeedQueue(data) as queue,
        pytest.raises(
            DataError, match=r"Element 3 .* float32\[2\] .* float32\[\] .*drop_remainder=True"
        ),
    ):
        repeat(4, adding(total), infeed=queue)
    assert total.numpy() == 0 + 1 + 2  # those before it have been used


def test_text_is_refused():
    with (
        InfeedQueue([np.array(["a", "b"])]) as queue,
        pytest.raises(DataError, match="no device can hold"),
    ):
        repeat(1, nothing, infeed=queue)


@pytest.mark.parametrize(("given", "wanted"), [("int64", "int32"), ("float64", "float32")])
def test_64_bits_become_32_with_one_warning(given, wanted, caplog):
    seen = []

    def body(x):
        seen.append(x.dtype)

    with caplog.at_level(logging.WARNING, "millrace"), InfeedQueue(numbers(9, given)) as queue:
        repeat(9, body, infeed=queue)
    assert set(seen) == {np.dtype(wanted)}
    assert [r.getMessage() for r in caplog.records] == [
        f"The data set of an infeed queue has {given} arrays, which become {wanted}. Cast them in "
        "the data set to save the time."
    ]


def test_whole_numbers_that_32_bits_do_not_hold():
    with (
        InfeedQueue([np.array([1, 2**40])]) as queue,
        pytest.raises(DataError, match=r"int64 values from 1 to 1099511627776.*hold int32"),
    ):
        repeat(1, nothing, infeed=queue)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool", "float16", "int32"])
def test_smaller_types_stay_as_they_are(dtype):
    seen = []
    with InfeedQueue(np.zeros((2, 3), dtype)) as queue:
        repeat(2, lambda x: seen.append(x.dtype), infeed=queue)
    assert set(map(str, seen)) == {dtype}


@pytest.mark.parametrize("compiled", [False, True])
def test_the_end_of_the_data_says_how_many_there_were(compiled):
    total = keras.Variable(0.0)

    def run(n):
        return repeat(n, adding(total), infeed=queue)

    run = compile_function(run) if compiled else run
    with InfeedQueue(numbers(7)) as queue:
        run(5)
        with pytest.raises(DataError, match=r"has ended after 7 elements.*close"):
            run(5)
        assert total.numpy() == sum(range(7))
        with pytest.raises(DataError, match="has ended after 7 elements"):
            run(1)
        queue.close()
        run(3)  # from the beginning
        assert total.numpy() == sum(range(7)) + 0 + 1 + 2


@pytest.mark.parametrize("compiled", [False, True])
def test_an_exception_of_the_data_set_is_raised_with_its_traceback(compiled):
    def broken_data():
        yield from numbers(5)
        raise KeyError("broken")

    total = keras.Variable(0.0)
    with InfeedQueue(broken_data) as queue:

        def run(n):
            return repeat(n, adding(total), infeed=queue)

        run = compile_function(run) if compiled else run
        run(2)  # compiled
        begin = time.monotonic()
        with pytest.raises(KeyError, match="broken") as caught:
            run(1000)
        assert time.monotonic() - begin < 1
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "broken_data" in names
    assert total.numpy() == 0 + 1 + 2 + 3 + 4
    repeat(3, lambda x: x, inputs=0)  # nothing is left behind that other loops would meet


def test_an_exception_before_the_first_element():
    def broken_data():
        raise KeyError("broken")
        yield

    with InfeedQueue(broken_data) as queue, pytest.raises(KeyError, match="broken"):
        repeat(3, nothing, infeed=queue)


def test_a_queue_that_is_forgotten_ends_its_thread():
    queue = InfeedQueue(numbers(10_000))
    queue.take(1)
    assert own_threads("millrace-infeed")
    del queue
    gc.collect()
    assert wait_until(lambda: not own_threads("millrace-infeed"))


def test_slow_data_is_used_as_it_comes():
    def data():
        for i in range(5):
            time.sleep(0.05)
            yield np.float32(i)

    with InfeedQueue(data()) as queue:
        segments = [queue.take(100) for _ in range(5)]
    assert [s.count for s in segments] == [1] * 5


def test_statistics_and_repr():
    with InfeedQueue(numbers(10)) as queue:
        assert queue.statistics().steps == 0
        repeat(10, nothing, infeed=queue)
        assert queue.statistics().steps == 10
        assert repr(queue) == "<InfeedQueue of list, 10 delivered>"


def test_tf_data():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.range(10).map(lambda i: tf.cast(i, tf.float32)).batch(3)
    with pytest.raises(DataError, match="drop_remainder=True"):
        InfeedQueue(data)
    data = tf.data.Dataset.range(9).map(lambda i: tf.cast(i, tf.float32))
    with InfeedQueue(data.batch(3, drop_remainder=True)) as queue:
        assert repeat(3, lambda c, x: c + x.sum(), inputs=0.0, infeed=queue) == 36


def test_torch_data_loader():
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    loader = data.DataLoader(data.TensorDataset(torch.arange(9.0), torch.ones(9)), batch_size=3)
    with InfeedQueue(loader) as queue:
        assert repeat(3, lambda c, x, y: c + (x * y).sum(), inputs=0.0, infeed=queue) == 36


def test_grain():
    grain = pytest.importorskip("grain")
    data = grain.MapDataset.range(9).map(np.float32).batch(3)
    with InfeedQueue(data) as queue:
        assert repeat(3, lambda c, x: c + x.sum(), inputs=0.0, infeed=queue) == 36
