"""A NaN that was in the data already: which argument, in which batch and row."""

import keras
import numpy as np
import pytest
from watching import arrays_of

import millrace
from millrace.base.records.flight import Flight, FlightRecord, write_flight
from millrace.base.records.tensors import NonFiniteData

ROWS = 4


def make_model(strategy, accumulation=1, executed=4):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(3, "tanh", name="a"), keras.layers.Dense(1)]
        )
    model.compile("sgd", "mse", steps_per_execution=accumulation * executed)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def make_data(argument, batch, row, batches=24):
    random = np.random.default_rng(0)
    data = {
        "x": random.random((batches * ROWS, 2), "float32"),
        "y": random.random((batches * ROWS, 1), "float32"),
        "sample_weight": np.ones(batches * ROWS, "float32"),
    }
    data[argument][batch * ROWS + row] = np.nan
    return data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "tensor", "nans"),
    [("x", "activation a", 2), ("y", "the loss", 1), ("sample_weight", "the loss", 1)],
)
def test_the_argument_the_batch_and_the_row_are_named(
    strategy, tmp_path, capsys, argument, tensor, nans
):
    model = make_model(strategy, accumulation=8, executed=2)
    data = make_data(argument, batch=20, row=2)
    watch = millrace.callbacks.NaNWatch(directory=tmp_path)
    model.fit(**data, batch_size=ROWS, shuffle=False, verbose=0, callbacks=[watch])
    found = watch.found
    assert str(found.tensor) == tensor
    assert (found.batch, found.update, found.micro_batch, found.step) == (20, 2, 4, 16)
    assert found.data == (NonFiniteData(argument, 4, 2, ROWS, nans, 0),)
    assert str(found).endswith("(epoch 0, batch 20, update 2, micro-batch 4 of 8, counted from 0)")
    # These numbers lead to the element that was planted.
    place = found.batch * ROWS + found.data[0].row
    assert np.isnan(data[argument][place]).all()
    printed = capsys.readouterr().err
    assert (
        f"in batch 20, {argument} has {nans} NaN and 0 infinite elements, the first in row 2"
        in (" ".join(printed.split()))
    )
    written = arrays_of(watch.written / "batches.npz")[f"4/{argument}"]
    np.testing.assert_array_equal(written, data[argument][20 * ROWS : 21 * ROWS])


def test_batches_are_those_of_the_epoch(strategy):
    data = make_data("y", batch=8, row=1)

    def batches():
        for k in range(24):
            rows = slice(k * ROWS, (k + 1) * ROWS)
            yield data["x"][rows], data["y"][rows]

    watch = millrace.callbacks.NaNWatch(directory=None)
    model = make_model(strategy, executed=2)
    options = {"shuffle": False, "verbose": 0, "callbacks": [watch]}
    model.fit(batches(), steps_per_epoch=5, epochs=4, **options)
    found = watch.found
    assert (found.epoch, found.batch, found.update, found.step) == (1, 3, 8, 8)
    assert str(found).endswith("(epoch 1, batch 3, update 8, counted from 0)")


def test_data_that_is_finite_is_not_blamed(strategy):
    model = make_model(strategy)
    model.layers[-1].kernel.assign(np.full((3, 1), 1e30))
    watch = millrace.callbacks.NaNWatch(directory=None)
    data = make_data("x", batch=20, row=0)
    model.fit(data["x"][:32], data["y"][:32], batch_size=ROWS, verbose=0, callbacks=[watch])
    assert str(watch.found.tensor) == "the loss"
    assert watch.found.data == ()


def test_a_batch_is_written_by_names_that_numpy_reads(tmp_path):
    half = keras.ops.convert_to_numpy(keras.ops.ones((3,), "bfloat16")) / 2
    batch = {"image": half, "id": [np.array([1, 2])]}, np.array(["a", "b"]), None
    record = FlightRecord(model="m", epoch=0, step=0, update=0, micro_batch=None, tensor=None)
    write_flight(tmp_path, Flight(record, (0,), (), np.zeros((1, 0, 8)), [batch, batch]))
    arrays = arrays_of(tmp_path / "batches.npz")
    assert list(arrays)[:3] == ["0/x['image']", "0/x['id'][0]", "0/y"]
    np.testing.assert_array_equal(arrays["1/x['image']"], [0.5, 0.5, 0.5])
    assert arrays["1/y"].tolist() == ["a", "b"]


def test_names_of_several_inputs_and_other_types():
    batch = ({"image": np.ones((2, 3)), "id": np.array([1, 2])}, [np.array([1.0, np.inf])], None)
    text = np.array(["a", "b"])
    from_adapters = [batch, ((batch[0], text), np.array([np.nan, 1.0], "float16"))]
    found = millrace.base.records.tensors.non_finite_data(from_adapters)
    assert [(one.argument, one.micro_batch, one.row, one.nans, one.infs) for one in found] == [
        ("y[0]", 0, 1, 0, 1),
        ("y", 1, 0, 1, 0),
    ]
