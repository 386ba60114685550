"""A fit that fails leaves nothing behind: no thread, file, process or device array."""

import signal
import tempfile
import threading
import time

import jax
import keras
import numpy as np
import pytest

import millrace
from resources import held, held_at_last

X, Y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")


class BrokenError(Exception):
    pass


def batches(fail, at=5, count=8):
    for index in range(count):
        if index == at:
            fail()
        yield X[:8], Y[:8]


def broken():
    raise BrokenError


class Rows(keras.utils.PyDataset):
    """Batches of which all but the first four fail."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if index >= 4:
            raise BrokenError
        return X[:8], Y[:8]


class RaisesInCallback(keras.callbacks.Callback):
    def __init__(self, method="on_train_batch_end"):
        super().__init__()
        setattr(self, method, self.fail)

    def fail(self, *args, **kwargs):
        raise BrokenError


class Interrupts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def made(layers, devices=1, **compiled):
    with millrace.Strategy(devices=devices).scope():
        model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse", **{"steps_per_execution": 2, **compiled})
    model.set_infeed_queue_options(max_resident_bytes=0)
    return model


def dense():
    return made([keras.layers.Dense(3), keras.layers.Dense(1)])


def replicated():
    return made([keras.layers.Dense(3), keras.layers.Dense(1)], devices=2)


def asynchronous():
    model = dense()
    model.set_asynchronous_callbacks(True)
    return model


def pipelined():
    with millrace.Strategy(devices=2).scope():
        inputs = keras.Input((4,))
        with millrace.PipelineStage(0):
            hidden = keras.layers.Dense(3)(inputs)
        with millrace.PipelineStage(1):
            outputs = keras.layers.Dense(1)(hidden)
        model = keras.Model(inputs, outputs)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.compile("adam", "mse", steps_per_execution=2)
    return model


def queued():
    queue = millrace.OutfeedQueue("last")

    class Enqueues(keras.layers.Layer):
        def call(self, inputs):
            queue.enqueue(inputs)
            return inputs

    return made([keras.layers.Dense(3), Enqueues(), keras.layers.Dense(1)])


def recorded():
    directory = tempfile.mkdtemp()
    with millrace.Strategy(devices=1, report_dir=directory).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=2)
    return model


def fails(model, *data, raises=BrokenError, **arguments):
    with pytest.raises(raises):
        model.fit(*data, verbose=0, shuffle=False, **arguments)


def of_data(model):
    fails(model, batches(broken))


def of_first_batch(model):
    fails(model, batches(broken, at=0))


def of_shape(model):
    data = ((X[:8, : 4 - (k == 5)], Y[:8]) for k in range(8))
    fails(model, data, raises=ValueError)


def of_callback(model):
    fails(model, X, Y, batch_size=8, callbacks=[RaisesInCallback()])


def at_epoch_end(model):
    fails(model, X, Y, batch_size=8, callbacks=[RaisesInCallback("on_epoch_end")])


def of_interrupt(model):
    callbacks = [Interrupts()]
    fails(model, batches(lambda: None), raises=KeyboardInterrupt, callbacks=callbacks)


def of_nan(model):
    weights = model.get_weights()
    with jax.debug_nans(True):
        fails(model, X * np.nan, Y, batch_size=8, raises=FloatingPointError)
    model.set_weights(weights)


def of_statistics(model):
    callbacks = [
        millrace.callbacks.TensorStatistics("*", "*"),
        RaisesInCallback(),
    ]
    fails(model, X, Y, batch_size=8, callbacks=callbacks)


def of_workers(model):
    fails(model, Rows(workers=2))


def of_processes(model):
    fails(model, Rows(workers=2, use_multiprocessing=True))


def of_hanging(model):
    """Its thread stays until the data set returns, which is here after the error."""
    returns = threading.Event()
    model.set_infeed_queue_options(max_wait_seconds=0.3)
    fails(model, batches(returns.wait), raises=millrace.errors.DataError)
    returns.set()
    model.set_infeed_queue_options(max_wait_seconds="auto")


def of_hanging_process(model):
    class Hangs(Rows):
        def __getitem__(self, index):
            time.sleep(0 if index < 4 else 100)
            return X[:8], Y[:8]

    model.set_infeed_queue_options(max_wait_seconds=0.5)
    data = Hangs(workers=2, use_multiprocessing=True)
    fails(model, data, raises=millrace.errors.DataError)
    model.set_infeed_queue_options(max_wait_seconds="auto")


def of_evaluation(model):
    with pytest.raises(BrokenError):
        model.evaluate(batches(broken), verbose=0)


def of_prediction(model):
    with pytest.raises(BrokenError):
        model.predict(batches(broken), verbose=0)


COMMON = (of_data, of_first_batch, of_shape, of_callback, at_epoch_end, of_interrupt)
OTHERS = (of_nan, of_statistics, of_evaluation, of_prediction, of_workers, of_hanging)
MODELS = (dense, replicated, asynchronous, pipelined, queued, recorded)


# In `make test`. The others are slow.
QUICK = [
    (dense, (of_data, of_shape, of_callback, of_interrupt, of_workers)),
    (pipelined, (of_data, of_callback)),
]


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """A directory for temporary files of this process alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize(
    ("make", "failures"), QUICK, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_few_failing_fits(make, failures):
    model = make()
    for failure in failures:  # what stays after the first time is there for good
        failure(model)
    before = held_at_last(held(), seconds=0.1)
    for failure in failures:
        failure(model)
    assert held_at_last(before).is_within(before), (held(), before)


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS)
def test_fifty_failing_fits(make):
    failures = (*COMMON, *OTHERS, of_processes, of_hanging_process) if make is dense else COMMON
    model = make()
    for failure in failures * 2:
        failure(model)
    before = held_at_last(held(), seconds=0.5)
    for k in range(50):
        failures[k % len(failures)](model)
    assert held_at_last(before).is_within(before), (held(), before)
