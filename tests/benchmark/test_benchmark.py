"""Benchmarks of data sets, run as a user would. What they measure is compared in `benchmarks/`."""

import itertools
import json
import logging
import threading
import time
import traceback
from types import SimpleNamespace

import jax
import keras
import numpy as np
import pytest

from millrace.errors import DataError, DTypeError, OptionError
from millrace.tools.benchmark.throughput import DEPTH, dataset_benchmark, infeed_benchmark
from own_threads import own_threads

BOTH = pytest.mark.parametrize("benchmark", [dataset_benchmark, infeed_benchmark])
FIELDS = {
    "elements_processed",
    "total_bytes_processed",
    "time_elapsed",
    "elements_per_second",
    "bandwidth",
}
X = np.random.default_rng(0).standard_normal((40, 4, 3), dtype=np.float32)
Y = X.sum(axis=2, keepdims=True)[:, :, 0]
NBYTES = X[0].nbytes + Y[0].nbytes
HANG = 30.0  # seconds; far above what any of these takes


def endless():
    yield from itertools.cycle(zip(X, Y, strict=True))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


def within(seconds, function):
    """Calls `function`, and fails instead of hanging."""
    outcome = []

    def run():
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, f"not done after {seconds} s"
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def assert_report(text, epochs, elements, nbytes):
    report = json.loads(text)
    assert isinstance(text, str)
    assert set(report) == {"epochs", "first_element_seconds"}
    assert len(report["epochs"]) == epochs
    for epoch in report["epochs"]:
        assert set(epoch) == FIELDS
        assert all(isinstance(value, float) and value > 0 for value in epoch.values())
        assert epoch["elements_processed"] == elements
        assert epoch["total_bytes_processed"] == nbytes
        seconds = epoch["time_elapsed"]
        assert epoch["elements_per_second"] == epoch["elements_processed"] / seconds
        assert epoch["bandwidth"] == epoch["total_bytes_processed"] / (1e9 * seconds)
    assert 0 < report["first_element_seconds"] <= report["epochs"][0]["time_elapsed"]
    assert not own_threads()


def grain_dataset():
    grain = pytest.importorskip("grain")
    return grain.MapDataset.source(X.reshape(-1, 3)).batch(4).repeat()


def tf_dataset():
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y)).repeat()


def torch_loader():
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    rows = data.TensorDataset(torch.tensor(X.reshape(-1, 3)), torch.tensor(Y.reshape(-1)))
    return data.DataLoader(rows, batch_size=4)


@BOTH
@pytest.mark.parametrize("do_memcpy", [True, False])
@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (endless, NBYTES),
        (lambda: endless, NBYTES),
        (lambda: list(zip(X, Y, strict=True)), NBYTES),
        (lambda: [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)], NBYTES),
        (lambda: map(np.asarray, X), X[0].nbytes),
        (lambda: [jax.numpy.asarray(x) for x in X], X[0].nbytes),
        (lambda: [(x, 1.0) for x in X], None),
        (Batches, NBYTES),
        (lambda: Batches(workers=2), NBYTES),
        (lambda: Batches, NBYTES),
        (lambda: SimpleNamespace(dataset=list(zip(X, Y, strict=True))), NBYTES),
        (lambda: SimpleNamespace(dataset=endless, prefetch_depth=3), NBYTES),
        (grain_dataset, X[0].nbytes),
        (tf_dataset, NBYTES),
        (torch_loader, NBYTES),
    ],
    ids=[
        "generator",
        "function",
        "list",
        "dicts",
        "iterator",
        "jax",
        "numbers-beside-arrays",
        "PyDataset",
        "PyDataset-workers",
        "class",
        "queue",
        "queue-with-depth",
        "grain",
        "tf",
        "torch",
    ],
)
def test_data_sources(benchmark, make, nbytes, do_memcpy):
    if nbytes is None:  # a Python number has 8 bytes, and 4 on a device
        nbytes = X[0].nbytes + (8 if benchmark is dataset_benchmark else 4)
    text = within(HANG, lambda: benchmark(make(), 2, 10, print_stats=False, do_memcpy=do_memcpy))
    assert_report(text, 2, 10, 10 * nbytes)


@BOTH
def test_no_more_is_drawn_than_was_asked_for(benchmark):
    data = iter(zip(X, Y, strict=True))
    within(HANG, lambda: benchmark(data, 3, 7, print_stats=False))
    np.testing.assert_array_equal(next(data)[0], X[21])


@BOTH
def test_sizes_that_change_are_counted_as_they_are(benchmark):
    def data():
        for rows in (1, 2, 3, 4, 5, 6):
            yield np.zeros((rows, 5), np.float32)

    report = json.loads(within(HANG, lambda: benchmark(data, 2, 3, print_stats=False)))
    sizes = [epoch["total_bytes_processed"] for epoch in report["epochs"]]
    assert sizes == [20.0 * (1 + 2 + 3), 20.0 * (4 + 5 + 6)]


def test_64_bits_count_as_they_are_in_host_memory_and_as_they_arrive():
    data = [np.zeros((2, 3))] * 4
    for benchmark, nbytes in {dataset_benchmark: 48, infeed_benchmark: 24}.items():
        assert_report(benchmark(data, 1, 4, print_stats=False), 1, 4, 4 * nbytes)


def test_the_queue_is_bounded():
    drawn, go_on = [], threading.Event()

    def data():
        for index in range(100):
            drawn.append(index)
            yield X[0]

    class Slow(logging.Handler):
        def emit(self, record):  # stops the consumer at the end of the first epoch
            go_on.wait(HANG)

    logger = logging.getLogger("millrace")
    handler = Slow()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        thread = threading.Thread(
            target=lambda: dataset_benchmark(data, 4, 25, print_stats=False), daemon=True
        )
        thread.start()
        end = time.monotonic() + HANG
        while len(drawn) < 25 + DEPTH + 1 and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.05)
        assert len(drawn) == 25 + DEPTH + 1  # one more is in the thread's hands
    finally:
        go_on.set()
        thread.join(HANG)
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert len(drawn) == 100


@BOTH
def test_a_line_for_each_epoch(benchmark, capsys, caplog):
    caplog.set_level(logging.INFO, "millrace")
    benchmark(endless(), 3, 5)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert all("elements/s, " in line and line.endswith(" GB/s") for line in printed)
    assert [record.getMessage() for record in caplog.records] == printed
    caplog.clear()
    benchmark(endless(), 2, 5, print_stats=False)
    assert capsys.readouterr().out == ""
    assert len(caplog.records) == 2  # logged always


@BOTH
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((endless, 0, 1), OptionError, "number_of_epochs must be at least 1. Received: 0. Set "),
        ((endless, 1, 0), OptionError, "elements_per_epochs must be at least 1. Received: 0. Set "),
        ((endless, 1, -3), OptionError, "Received: -3. Set elements_per_epochs=1 or more"),
        ((endless, 1.5, 1), OptionError, "number_of_epochs must be a whole number"),
        ((endless, 1, "9"), OptionError, "elements_per_epochs must be a whole number of at least "),
        ((3, 1, 1), DTypeError, "dataset=3 of type int cannot be iterated. Set dataset to a tf."),
        ((None, 1, 1), DTypeError, "dataset=None of type NoneType cannot be iterated"),
        ((lambda: 7, 1, 1), DTypeError, "dataset=7 of type int cannot be iterated"),
        ((X, 1, 1), DTypeError, "value of type ndarray, which is not divided into batches"),
        (((X, Y), 1, 1), DTypeError, "a value of type tuple, which is not divided into batches"),
        (({"x": X}, 1, 1), DTypeError, "a value of type dict, which is not divided into batches"),
        (("train", 1, 1), DTypeError, "a value of type str, which is not divided into batches"),
        (
            ([1, 2, 3], 1, 1),
            DTypeError,
            "Element 0 of the data set contains no array. Received: 1 of",
        ),
        (
            ([X[0], None], 1, 2),
            DTypeError,
            "Element 1 of the data set contains no array. Received: N",
        ),
        (([[]], 1, 1), DTypeError, r"contains no array. Received: \[\] of type list"),
        (
            ([np.array([[1], [2, 3]], object)], 1, 1),
            DataError,
            r"Leaf 0 of element 0 is an array of shape \(2,\) that contains Python objects",
        ),
        (
            (lambda path: endless(), 1, 1),
            OptionError,
            r"missing a required argument: 'path'. Set dataset=lambda: function\(...\)",
        ),
    ],
)
def test_wrong_arguments(benchmark, arguments, error, message):
    with pytest.raises(error, match=message):
        within(HANG, lambda: benchmark(*arguments, print_stats=False))
    assert not own_threads()


def test_the_builtin_errors():
    with pytest.raises(ValueError, match="number_of_epochs"):
        dataset_benchmark(endless(), 0, 1)
    with pytest.raises(TypeError, match="cannot be iterated"):
        dataset_benchmark(3, 1, 1)
    for name in ("print_stats", "do_memcpy"):
        with pytest.raises(OptionError, match=f"{name} must be True or False. Received: 1"):
            dataset_benchmark(endless(), 1, 1, **{name: 1})


@BOTH
@pytest.mark.parametrize("make", [lambda: list(X[:7]), lambda: iter(X[:7]), lambda: lambda: X_7()])
def test_data_that_ends_early(benchmark, make):
    with pytest.raises(DataError) as caught:
        within(HANG, lambda: benchmark(make(), 2, 5, print_stats=False))
    message = str(caught.value)
    assert "ended after 7 elements, but 2 epochs of 5 elements need 10" in message
    assert (
        "Ask for 2 epochs of 3 elements or fewer, or make the data endless: with repeat()"
        in message
    )
    assert not own_threads()


def X_7():  # noqa: N802 - the first seven of X
    yield from X[:7]


@BOTH
def test_no_data_at_all(benchmark):
    with pytest.raises(
        DataError, match=r"ended after 0 elements.* Make the data endless: with repeat\(\)"
    ):
        within(HANG, lambda: benchmark([], 3, 2, print_stats=False))


def test_text_goes_through_the_queue_and_not_into_an_infeed():
    data = [np.array(["ab", "c"])] * 3
    assert_report(dataset_benchmark(data, 1, 3, print_stats=False), 1, 3, 3 * data[0].nbytes)
    with pytest.raises(DataError, match="has dtype <U2, which no device can hold"):
        within(HANG, lambda: infeed_benchmark(data, 1, 3, print_stats=False))


@BOTH
@pytest.mark.parametrize("good", [0, 3, 25])
def test_what_the_data_set_raises(benchmark, good):
    def read_row_17():
        raise KeyError("row 17 is broken")

    def data():
        yield from X[:good]
        read_row_17()

    with pytest.raises(KeyError, match="row 17 is broken") as caught:
        within(HANG, lambda: benchmark(data(), 10, 10, print_stats=False))
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-2:] == ["data", "read_row_17"]
    assert not own_threads()


@BOTH
def test_an_error_while_the_thread_waits_for_a_place(benchmark, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("millrace.tools.benchmark.throughput.measure", fail)
    with pytest.raises(KeyboardInterrupt):
        within(HANG, lambda: benchmark(endless(), 10, 10, print_stats=False))
    assert not own_threads()


def test_a_pydataset_is_told_that_its_epoch_ends():
    told = []

    class Told(Batches):
        def on_epoch_begin(self):
            told.append("begin")

        def on_epoch_end(self):
            told.append("end")

    dataset_benchmark(Told(), 2, 5, print_stats=False)
    with pytest.raises(DataError):
        dataset_benchmark(Told(), 2, 50, print_stats=False)
    assert told == ["begin", "end"] * 2


# Names on a command line.
