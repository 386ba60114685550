"""Bad data: each error says in which batch of which epoch it is, and what to do."""

import logging
import threading

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.base.error_notes import add_note
from millrace.errors import DataError, NonFiniteError
from millrace.programs.feeds import waiting

ROWS = 4
X, Y = np.ones((ROWS, 4), "float32"), np.ones((ROWS, 1), "float32")


class DiskError(Exception):
    """An error of the user's data set."""


def disk_error():
    raise DiskError("sector 7")


def made(strategy, layers=None, **compiled):
    with strategy.scope():
        model = keras.Sequential(layers or [keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **{"steps_per_execution": 3, **compiled})
    return model


@pytest.fixture
def model(strategy):
    return made(strategy)


def batches(bad, at, count=12):
    """Batches of which the one with number `at`, from 0, is what `bad()` returns."""
    for index in range(count):
        yield bad() if index == at else (X, Y)


def notes_of(caught):
    return "\n".join(getattr(caught.value, "__notes__", ()))


def run(model, method, data, **arguments):
    if method == "fit":
        arguments["shuffle"] = False
    return getattr(model, method)(data, verbose=0, **arguments)


class Rows(keras.utils.PyDataset):
    def __init__(self, bad=disk_error, at=7, length=12, **kwargs):
        super().__init__(**kwargs)
        self.bad, self.at, self.length = bad, at, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.bad() if index == self.at else (X, Y)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("data", [lambda: batches(disk_error, 7), Rows], ids=["generator", "rows"])
def test_an_error_of_the_data_set_is_unchanged_and_names_its_batch(model, method, data):
    with pytest.raises(DiskError) as caught:
        run(model, method, data())
    assert str(caught.value) == "sector 7"
    assert caught.value.__cause__ is None
    assert notes_of(caught) == (
        f"millrace: raised while batch 8 of epoch 1 of {method} was prepared."
    )


@pytest.mark.slow
def test_a_batch_of_a_later_epoch(model):
    drawn = iter(range(100))
    data = Rows(lambda: disk_error() if next(drawn) == 2 else (X, Y), 4)
    with pytest.raises(DiskError) as caught:
        model.fit(data, epochs=5, verbose=0, shuffle=False)
    assert "batch 5 of epoch 3 of fit" in notes_of(caught)


def test_batch_one_thousand(strategy):
    model = made(strategy, steps_per_execution=100)
    with pytest.raises(ValueError, match="incompatible") as caught:
        model.fit(batches(lambda: (X[:, :3], Y), 999, 1100), verbose=0, shuffle=False)
    assert notes_of(caught).endswith(
        "millrace: raised in batch 1,000 of epoch 1 of fit (float32[4,3], float32[4,1]). The "
        "batches before were (float32[4,4], float32[4,1]): check the data set there."
    )


def test_the_first_batch(strategy, model):
    with pytest.raises(DiskError) as caught:
        model.fit(batches(disk_error, 0), verbose=0, shuffle=False)
    assert "before epoch 1, when Keras looks at the data" in notes_of(caught)
    with pytest.raises(DiskError) as caught:
        model.fit(Rows(at=0), verbose=0, shuffle=False)
    assert "batch 1 of epoch 1 of fit" in notes_of(caught)
    unbuilt = made(strategy, [keras.layers.Dense(1)])
    with pytest.raises(DiskError) as caught:
        unbuilt.fit(Rows(at=0), verbose=0, shuffle=False)
    assert "batch 1 of epoch 1 of fit" in notes_of(caught)
    # Keras 3.13 has a RuntimeError around the ValueError.
    with pytest.raises((ValueError, RuntimeError), match="incompatible") as caught:
        model.fit(((X[:, :2], Y) for _ in range(4)), verbose=0, shuffle=False)
    assert "built the model from batch 1 of epoch 1 of fit (float32[4,2]" in notes_of(caught)
    model.fit(X, Y, verbose=0)  # builds the metrics
    with pytest.raises(ValueError, match="incompatible") as caught:
        model.fit(((X[:, :2], Y) for _ in range(4)), verbose=0, shuffle=False)
    assert "in batches 1 to 3 of epoch 1 of fit, each (float32[4,2]" in notes_of(caught)


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_workers(model, kind):
    data = Rows(workers=2, use_multiprocessing=kind == "processes")
    with pytest.raises(DiskError, match="sector 7") as caught:
        model.predict(data, verbose=0)
    assert "batch 8 of epoch 1 of predict" in notes_of(caught)


def test_an_error_that_workers_raise_where_the_epoch_ends(model):
    # Keras builds the metrics from a batch, and ends the workers for it: they have drawn ahead.
    with pytest.raises(DiskError, match="sector 7") as caught:
        model.fit(Rows(workers=2), verbose=0, shuffle=False)
    assert "millrace: raised " in notes_of(caught)
    assert "epoch 1 of fit" in notes_of(caught)


def test_data_of_grain(model):
    grain = pytest.importorskip("grain")

    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return disk_error() if index == 7 else (X[0], Y[0])

    data = grain.MapDataset.source(Source()).batch(1)
    with pytest.raises(DiskError) as caught:
        model.fit(data, verbose=0, shuffle=False)
    assert "batch 8 of epoch 1 of fit" in notes_of(caught)


def test_text(model):
    text = np.full((ROWS, 4), "a")
    with pytest.raises(DataError, match="dtype <U1") as caught:
        model.fit(batches(lambda: (text, Y), 7), verbose=0, shuffle=False)
    assert "batch 8 of epoch 1 of fit" in notes_of(caught)


@pytest.mark.slow
def test_a_change_of_dtype_or_rows_that_can_be_trained(model):
    for bad in (lambda: (X.astype("int32"), Y), lambda: (X[:2], Y[:2])):
        model.fit(batches(bad, 7), verbose=0, shuffle=False)


def test_a_batch_without_targets_or_without_anything(model):
    for bad, specs in ((lambda: (X,), r"(float32[4,4])"), (lambda: (None,), r"(no arrays)")):
        # Keras 3.16 has no error of its own for the first.
        with pytest.raises((ValueError, AttributeError), match="None") as caught:
            model.fit(batches(bad, 7), verbose=0, shuffle=False)
        assert f"batch 8 of epoch 1 of fit {specs}. The batches before" in notes_of(caught)


def test_no_batch(model):
    with pytest.raises(DataError, match=r"\(Rows\) has no batch: its length is 0.*drop_last"):
        model.fit(Rows(length=0), verbose=0)


def test_nan_that_jax_finds(model):
    bad = X.copy()
    bad[2, 1] = np.nan
    message = (
        r"A nan came out of 'train_run' over 3 steps \(batches 7 to 9 of epoch 1 of fit\)(.|\n)*"
        r"of batch 8 of epoch 1 of fit, x has 1 NaN and 0 infinite elements, the first in row 2 "
        r"of 4, counted from 0. The model has the weights from before"
    )
    with jax.debug_nans(True), pytest.raises(NonFiniteError, match=message):
        model.fit(batches(lambda: (bad, Y), 7), verbose=0, shuffle=False)


def test_nan_that_a_callback_finds(model, capsys):
    bad = batches(lambda: (X * np.nan, Y), 7)
    watch = millrace.callbacks.NaNWatch(directory=None)
    model.fit(bad, verbose=0, shuffle=False, callbacks=[watch])
    assert (watch.found.epoch, watch.found.batch) == (0, 7)
    assert "in batch 7, x has 16 NaN" in capsys.readouterr().err
    stop = keras.callbacks.TerminateOnNaN()
    model.fit(batches(lambda: (X * np.nan, Y), 7), verbose=0, shuffle=False, callbacks=[stop])
    assert "Batch 8: Invalid loss" in capsys.readouterr().out  # the last one of its execution


@pytest.fixture
def returns():
    """An event for which a hanging data set waits."""
    event = threading.Event()
    yield event
    event.set()


def hang_until(event):
    event.wait(60)
    return X, Y


@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.slow), 7])
def test_a_data_set_that_hangs(model, returns, at):
    model.set_infeed_queue_options(max_wait_seconds=0.2)
    message = (
        rf"not returned batch {at + 1} of epoch 1 of fit for 0.[2-9] s; max_wait_seconds=0.2 "
        r"allows no more(.|\n)*in hang_until\n    event.wait\(60\)(.|\n)*"
        r"set a larger max_wait_seconds"
    )
    with pytest.raises(DataError, match=message):
        model.fit(batches(lambda: hang_until(returns), at), verbose=0, shuffle=False)
    model.fit(X, Y, verbose=0)


def test_a_worker_that_hangs(model, returns):
    model.set_infeed_queue_options(max_wait_seconds=0.2)
    data = Rows(lambda: hang_until(returns), workers=2)
    message = r"not returned batch 8 of epoch 1 of predict(.|\n)*with workers, run the data set"
    with pytest.raises(DataError, match=message):
        model.predict(data, verbose=0)


@pytest.mark.slow
def test_an_end_of_an_epoch_that_hangs(model, returns):
    class Ends(Rows):
        def on_epoch_end(self):
            hang_until(returns)

    model.set_infeed_queue_options(max_wait_seconds=0.2)
    with pytest.raises(DataError, match=r"not returned from the begin or the end of epoch 1 of ev"):
        model.evaluate(Ends(at=-1), verbose=0)


def test_a_warning_after_a_long_wait(model, returns, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "WARN_SECONDS", 0.1)

    def is_kept(record):  # and the data set goes on
        returns.set()
        return True

    monkeypatch.setattr(waiting.logger, "filters", [is_kept])
    with caplog.at_level(logging.WARNING, "millrace"):
        model.fit(batches(lambda: hang_until(returns), 7), verbose=0, shuffle=False)
    (warned,) = [each for each in caplog.messages if "has not returned" in each]
    assert "batch 8 of epoch 1 of fit" in warned
    assert "event.wait(60)" in warned
    assert "max_wait_seconds=...) ends such a wait" in warned


def test_an_infeed_queue_names_its_element(strategy):
    queue = millrace.InfeedQueue(lambda: ((disk_error() if k == 3 else X[0]) for k in range(5)))

    @millrace.compile
    def total():
        return millrace.repeat(5, lambda value, x: value + x.sum(), [0.0], queue)

    with pytest.raises(DiskError) as caught:
        strategy.run(total)
    assert "element 3 of an infeed queue" in notes_of(caught)


def test_the_same_place_is_noted_once():
    error = DiskError()
    add_note(error, "here.")
    add_note(error, "there.")
    assert error.__notes__ == ["millrace: here."]
