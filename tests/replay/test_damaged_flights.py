"""Flights that are damaged, or whose files do not belong together, are refused by name."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import DataError
from millrace.replay import replay


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    with millrace.Strategy(devices=1).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    watch = millrace.callbacks.NaNWatch(directory=tmp_path_factory.mktemp("flights"))
    x = np.full((8, 2), np.inf, "float32")
    model.fit(x, x[:, :1], batch_size=4, verbose=0, callbacks=[watch])
    return watch.written


@pytest.fixture
def flight(written, tmp_path):
    return pathlib.Path(shutil.copytree(written, tmp_path / "flight"))


def change_record(path, **fields):
    file = path / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def change_arrays(path, file, change):
    arrays = dict(np.load(path / file))
    index = json.loads(str(arrays["index"]))
    change(arrays, index)
    np.savez(path / file, **{**arrays, "index": np.array(json.dumps(index))})


def put_other_kernel(arrays, index):
    arrays["trainable/0"], index["trainable"][0] = np.ones((3, 1), "f4"), ["float32", [3, 1]]


def put_wider_batch(arrays, index):
    arrays["0/0"], index["0"][0] = np.ones((4, 5), "f4"), ["float32", [4, 5]]


def drop_role(arrays, index):
    del index["optimizer"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: change_record(path, reduction="median"), "does not run: 'median'"),
        (lambda path: change_record(path, accumulator="floaty"), "does not run: dtype='floaty'"),
        (lambda path: change_record(path, epoch="x"), r"record\.json: int expected"),
        (lambda path: change_record(path, batches=[7]), r"batches\.npz: a batch with 2 arrays"),
        (lambda path: change_record(path, batches=3), r"record\.json: it has no batches"),
        (lambda path: change_record(path, updates=[]), r"statistics\.npz: it has statistics"),
        (lambda path: change_record(path, tensors=[]), r"statistics\.npz: it has statistics"),
        (lambda path: (path / "state.npz").unlink(), r"state\.npz: it is missing"),
        (lambda path: (path / "model.keras").write_bytes(b"PK"), "does not load.*register_keras"),
        (lambda path: change_arrays(path, "state.npz", put_other_kernel), "trainable values"),
        (lambda path: change_arrays(path, "state.npz", drop_role), "has 0 optimizer values"),
        (lambda path: change_arrays(path, "batches.npz", put_wider_batch), "does not run"),
    ],
)
def test_a_damaged_flight_is_refused(flight, change, message):
    change(flight)
    with pytest.raises(DataError, match=message) as error:
        replay(flight)
    assert str(flight) in str(error.value)


def test_a_whole_one_is_not(flight):
    assert replay(flight).repeats
