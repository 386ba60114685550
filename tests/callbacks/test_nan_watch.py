import json
import os
import tempfile

import keras
import numpy as np
import pytest
from keras import layers
from watching import arrays_of

import millrace
from millrace.api.callbacks import nan_watch
from millrace.api.callbacks.nan_watch import NaNWatch
from millrace.errors import ModelError, OptionError

ROWS = 8


@keras.saving.register_keras_serializable("tests")
class Root(layers.Layer):
    """The square root, whose gradient is infinite at zero and which has none below."""

    def call(self, x):
        return keras.ops.sqrt(x)


def make_model(strategy, accumulation=1, executed=4, convolution=False):
    keras.utils.set_random_seed(4)
    shape = (6, 6, 1) if convolution else (4,)
    head = [layers.Conv2D(3, 3), layers.Flatten()] if convolution else []
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input(shape),
                *head,
                layers.Dense(8, "sigmoid", name="first"),
                layers.Dropout(0.25, seed=3),
                layers.BatchNormalization(name="norm"),
                layers.Dense(4, "softplus", name="middle"),
                Root(name="root"),
                layers.Dense(1, name="last"),
            ]
        )
    model.compile("adam", "mse", steps_per_execution=accumulation * executed)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def make_data(batches, bad=None, convolution=False):
    """Returns rows that train, with a batch in which one row is infinite."""
    random = np.random.default_rng(1)
    shape = (6, 6, 1) if convolution else (4,)
    x = random.standard_normal((batches * ROWS, *shape)).astype("float32")
    y = x.reshape(len(x), -1).sum(1, keepdims=True)
    if bad is not None:
        x[bad * ROWS + 2] = np.inf
    return x, y


def fit(model, data, **arguments):
    model.fit(*data, batch_size=ROWS, shuffle=False, verbose=0, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accumulation", "executed", "bad"),
    [
        (1, 4, 6),
        (3, 20, 13),
        (1, 20, 6),
        (3, 2, 7),
        (3, 20, 11),
        (1, 1, 0),
    ],
)
def test_stops_before_the_update_and_names_what_did_it(
    strategy, tmp_path, accumulation, executed, bad
):
    """14 batches: with an accumulation of 3 the last update has two."""
    model = make_model(strategy, accumulation, executed)
    watch = NaNWatch(directory=tmp_path, last=3)
    fit(model, make_data(14, bad), callbacks=[watch], epochs=2)
    update, micro_batch = divmod(bad, accumulation)
    found = watch.found
    assert (found.tensor.kind, found.tensor.name) == ("activation", "first")
    assert (found.epoch, found.update, found.micro_batch) == (0, update, micro_batch)
    assert found.step == update * accumulation
    assert int(model.optimizer.iterations) == update
    plain = make_model(strategy, accumulation, 1)
    if update:
        x, y = make_data(14, bad)
        rows = update * accumulation * ROWS
        fit(plain, (x[:rows], y[:rows]))
        for mine, theirs in zip(model.variables, plain.variables, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7, err_msg=mine.path)


@pytest.mark.slow
def test_the_last_updates_are_kept_and_the_batch(strategy, tmp_path):
    model = make_model(strategy, executed=20)
    x, y = make_data(12, bad=9)
    watch = NaNWatch(directory=tmp_path, last=3)
    fit(model, (x, y), callbacks=[watch])
    record = json.loads((watch.written / "record.json").read_text())
    assert (record["update"], record["updates"]) == (9, [7, 8, 9])
    assert len(record["tensors"]) == len(model.trainable_variables)
    statistics = arrays_of(watch.written / "statistics.npz")["statistics"]
    assert statistics.shape == (3, len(model.trainable_variables), 8)
    norms = statistics[:, :, record["columns"].index("norm")]
    assert np.isfinite(norms[:2]).all()
    assert not np.isfinite(norms[2]).any()
    batches = arrays_of(watch.written / "batches.npz")
    assert sorted(batches) == ["0/x", "0/y"]
    np.testing.assert_array_equal(batches["0/x"], x[9 * ROWS : 10 * ROWS])
    np.testing.assert_array_equal(batches["0/y"], y[9 * ROWS : 10 * ROWS])


@pytest.mark.slow
@pytest.mark.parametrize("convolution", [False, True])
def test_what_was_written_can_be_looked_at_by_hand(strategy, tmp_path, convolution):
    model = make_model(strategy, accumulation=2, executed=3, convolution=convolution)
    watch = NaNWatch(directory=tmp_path)
    fit(model, make_data(12, 7, convolution), callbacks=[watch])
    name = "conv2d" if convolution else "first"
    assert (watch.found.micro_batch, watch.found.tensor.name) == (1, name)
    batches = arrays_of(watch.written / "batches.npz")
    assert [key for key in batches if not np.isfinite(batches[key]).all()] == ["1/x"]
    again = keras.models.load_model(watch.written / "model.keras")
    for mine, theirs in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    until = keras.Model(again.inputs[0], again.get_layer(name).output)
    assert np.isfinite(until(batches["0/x"])).all()
    assert not np.isfinite(until(batches["1/x"])).all()


def test_a_gradient_may_be_the_first(strategy, tmp_path):
    """The square root of zero is zero, and its gradient is not finite."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((2,)),
                layers.Dense(2, kernel_initializer="zeros", name="zeros"),
                Root(name="root"),
            ]
        )
    model.compile("sgd", "mse", steps_per_execution=4)
    data = np.ones((4 * ROWS, 2), "float32"), np.ones((4 * ROWS, 2), "float32")
    watch = NaNWatch(directory=None)
    fit(model, data, callbacks=[watch])
    assert watch.written is None
    assert watch.found.tensor.kind == "gradient"
    assert "zeros/" in watch.found.tensor.name
    assert watch.found.update == 0


@pytest.mark.slow
def test_all_goes_well(strategy, tmp_path):
    watched, plain = make_model(strategy), make_model(strategy)
    watch = NaNWatch(directory=tmp_path)
    fit(watched, make_data(12), callbacks=[watch], epochs=2)
    fit(plain, make_data(12), epochs=2)
    assert watch.found is None
    assert not list(tmp_path.iterdir())
    for mine, theirs in zip(watched.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_training_goes_on_from_where_it_stopped(strategy, tmp_path):
    model = make_model(strategy, executed=20)
    x, y = make_data(12, bad=5)
    watch = NaNWatch(directory=tmp_path)
    fit(model, (x, y), callbacks=[watch])
    good = make_data(12)
    fit(model, tuple(a[5 * ROWS :] for a in good), callbacks=[watch])
    assert watch.found is None
    plain = make_model(strategy)
    fit(plain, good)
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_what_it_cannot_watch_is_said_when_training_starts(strategy):
    model = make_model(strategy)
    millrace_free = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    millrace_free.compile("sgd", "mse")
    with pytest.raises(ModelError, match=r"strategy\.attach\(model\)"):
        millrace_free.fit(*make_data(2), verbose=0, callbacks=[NaNWatch()])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    with pytest.raises(OptionError, match="auto_scale_loss=False"):
        model.fit(*make_data(2), verbose=0, callbacks=[NaNWatch()])
    with pytest.raises(OptionError, match=r"last must be at least 1"):
        NaNWatch(last=0)
    with pytest.raises(OptionError, match=r"gradients='\*'"):
        NaNWatch(gradients=[])
    with pytest.raises(OptionError, match=r"directory must be a path.*leave it out"):
        NaNWatch(directory=3)


def stopped(strategy, **arguments):
    """Returns a callback that has stopped a training."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = NaNWatch(**arguments)
    bad = np.full((ROWS, 1), np.inf, "float32")
    model.fit(bad, bad, batch_size=ROWS, verbose=0, callbacks=[watch])
    assert watch.found is not None
    return watch


def test_a_flight_is_written_to_the_directory_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch = stopped(millrace.Strategy(devices=1, report_dir="run"))
    assert watch.written.parent == tmp_path / "run" / "flights"
    record = json.loads((watch.written / "record.json").read_text())
    assert record["tensor"]["name"] == watch.found.tensor.name
    (note,) = millrace.records.load("run").flights
    assert note.directory == str(watch.written)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_without_a_run_a_flight_is_written_to_the_cache_of_the_user(
    strategy, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILLRACE_CACHE_DIR", str(tmp_path / "a b"))
    flights = tmp_path / "a b" / "flights"
    watch = stopped(strategy)
    assert watch.written.parent == flights
    assert [path.stat().st_mode & 0o777 for path in (flights.parent, flights)] == [0o700] * 2
    assert f"Its batches: {watch.written}\n" in capsys.readouterr().err
    os.utime(watch.written, (1, 1))  # it is old
    again = stopped(strategy)
    assert list(flights.iterdir()) == [again.written]


def test_nothing_is_removed_from_a_directory_of_the_user(strategy, tmp_path):
    old = tmp_path / "m-update0-20000101-000000"
    old.mkdir()
    (old / "record.json").write_text("{}")
    os.utime(old, (1, 1))
    assert stopped(strategy, directory=tmp_path).written.parent == tmp_path
    assert old.exists()


def test_a_flight_that_cannot_be_written_leaves_the_training_stopped(
    strategy, tmp_path, caplog, monkeypatch
):
    (tmp_path / "file").write_text("mine")
    assert stopped(strategy, directory=tmp_path / "file").written is None
    assert "Set NaNWatch(directory=...)" in caplog.text
    monkeypatch.setattr(nan_watch, "write_flight", lambda *_: np.stack([]))
    assert stopped(strategy, directory=tmp_path).written is None
    assert "ValueError: need at least one array" in caplog.messages[-1]
    assert "Set NaNWatch" not in caplog.messages[-1]


@pytest.mark.parametrize("method", ["get_config", "save_own_variables"])
def test_a_model_that_keras_cannot_save(strategy, tmp_path, caplog, capsys, monkeypatch, method):
    def fails(*_):
        raise NotImplementedError  # without a word

    monkeypatch.setattr(layers.Dense, method, fails)
    watch = stopped(strategy, directory=tmp_path)
    assert "activation dense" in str(watch.found)
    assert f"Its batches: {watch.written}" in capsys.readouterr().err
    assert "NotImplementedError" in caplog.messages[-1]
    assert sorted(arrays_of(watch.written / "batches.npz")) == ["0/x", "0/y"]
    assert not (watch.written / "model.keras").exists()


def test_a_user_without_a_home(strategy, tmp_path, monkeypatch):
    monkeypatch.setattr(nan_watch, "default_root", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    watch = stopped(strategy)
    assert watch.written.parent.parent == tmp_path
    assert watch.written.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
def test_replicas(tmp_path):
    model = make_model(millrace.Strategy(devices=2), accumulation=2, executed=6)
    watch = NaNWatch(directory=tmp_path)
    fit(model, make_data(12, bad=6), callbacks=[watch])
    assert (watch.found.update, watch.found.micro_batch) == (1, 2)
    assert watch.found.tensor.name == "first"


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_pipeline_names_the_stage(tmp_path, replicas):
    model = make_model(millrace.Strategy(devices=2 * replicas), executed=3 * 2 * replicas)
    model.set_pipeline_stage_assignment([0, 0, 0, 1, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    watch = NaNWatch(directory=tmp_path)
    bad = 2 * replicas + 1  # in the second update
    x, y = make_data(6 * replicas, bad)
    fit(model, (x, y), callbacks=[watch])
    assert (watch.found.update, watch.found.micro_batch) == (1, 1)
    assert watch.found.stages == 2
    assert f"of stage {watch.found.tensor.stage} has" in str(watch.found)
    plain = make_model(millrace.Strategy(devices=1), accumulation=2 * replicas, executed=1)
    rows = 2 * replicas * ROWS
    fit(plain, (x[:rows], y[:rows]))
    # Moving statistics of replicas are averages, see docs/replicas.md.
    for mine, theirs in zip(model.trainable_variables, plain.trainable_variables, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
