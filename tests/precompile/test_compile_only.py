"""What is compiled where nothing runs, against what the same calls compile where they do run."""

import threading

import keras
import numpy as np
import pytest

import millrace
from case_marks import slow_but_for
from millrace.callbacks import NaNWatch
from millrace.callbacks.tensor_statistics import TensorStatistics
from millrace.errors import OptionError, PlanError
from millrace.precompile import compile_only
from millrace.precompile.compile_only import compiling_only

layers = keras.layers


@pytest.fixture(autouse=True)
def any_cache(monkeypatch, request):
    """Lets tests compile without a cache."""
    if "cache" not in request.node.name:
        monkeypatch.setattr(compile_only, "check_cache", lambda: None)


def mlp(steps=4, **arguments):
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, "relu", name="hidden"), layers.Dense(1)], name="mlp"
    )
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps, **arguments)
    return model


def convnet(steps=4):
    model = keras.Sequential(
        [keras.Input((6, 6, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(1)]
    )
    model.compile("adam", "mse", steps_per_execution=steps)
    return model


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, y_pred, sample_weight) | {"mine": y_pred[0, 0]}


def data(rows, inputs=(8,)):
    random = np.random.default_rng(0)
    return random.random((rows, *inputs), np.float32), random.random((rows, 1), np.float32)


def batches(count, rows=4):
    x, y = data(count * rows)
    for start in range(0, len(x), rows):
        yield x[start : start + rows], y[start : start + rows]


class Batches(keras.utils.PyDataset):
    def __init__(self, count, **arguments):
        super().__init__(**arguments)
        self.batches = list(batches(count))
        self.drawn = 0

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        self.drawn += 1
        return self.batches[index]


def ragged(strategy):
    model = mlp()
    model.fit(*data(45), batch_size=4, epochs=2, verbose=0, validation_data=data(19))
    model.evaluate(*data(50), verbose=0)
    model.predict(data(70)[0], verbose=0)
    model.train_on_batch(*data(7))
    model.predict_on_batch(data(7)[0])


def longer_and_shorter_results(strategy):
    model = mlp()
    for rows in (5, 60, 7, 150):
        model.predict(data(rows)[0], batch_size=4, verbose=0)
    model.predict_on_batch(data(3)[0])


def streamed(strategy):
    model = mlp(7)
    model.set_infeed_queue_options(max_resident_bytes=0)
    model.fit(*data(45), batch_size=4, epochs=2, verbose=0, validation_split=0.3)


def small_blocks(strategy):
    model = mlp(8)
    model.set_infeed_queue_options(max_block_bytes=3 * 4 * 9 * 4)
    model.fit(*data(90), batch_size=4, epochs=2, verbose=0)


def epochs_of_parts(strategy):
    mlp().fit(*data(45), batch_size=4, epochs=2, steps_per_epoch=6, verbose=0)
    mlp().fit(*data(45), batch_size=4, epochs=2, steps_per_epoch=5, verbose=0)


def generator(strategy):
    model = mlp()
    model.fit(batches(8), shuffle=False, verbose=0, validation_data=batches(4))
    model.predict(((x,) for x, _ in batches(8)), verbose=0)


def py_dataset(strategy):
    model = mlp()
    model.fit(Batches(10), epochs=2, verbose=0, class_weight={0: 1.0, 1: 2.0})
    model.evaluate(Batches(3), verbose=0)


def weighted(strategy):
    x, y = data(40)
    mlp().fit(x, y, sample_weight=y[:, 0], batch_size=4, verbose=0)
    y = (y > 0.5).astype("int32")
    mlp().fit(x, y, class_weight={0: 1.0, 1: 2.0}, batch_size=4, verbose=0)


def unrolled(strategy):
    model = convnet(12)
    model.fit(*data(62, (6, 6, 1)), batch_size=4, verbose=0)
    model.predict(data(30, (6, 6, 1))[0], batch_size=4, verbose=0)


def accumulated(strategy):
    model = mlp(8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    model.fit(*data(4 * 22 + 3), batch_size=4, epochs=2, verbose=0)


def own_step(strategy):
    model = OwnStep()
    model.compile("sgd", "mse", steps_per_execution=3)
    model.fit(*data(20), batch_size=4, verbose=0, validation_data=data(8))
    model.predict(data(9)[0], batch_size=4, verbose=0)


def watched(strategy):
    model = mlp()
    watch = [NaNWatch(directory=None), TensorStatistics(["*"], ["*"], print_every=0)]
    model.fit(*data(40), batch_size=4, verbose=0, callbacks=watch)
    model.fit(*data(40), batch_size=4, verbose=0, callbacks=watch[1])
    model.fit(*data(40), batch_size=4, verbose=0)


def watched_windows(strategy):
    model = mlp(8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    watch = NaNWatch(directory=None)
    model.fit(*data(4 * 10 + 3), batch_size=4, verbose=0, callbacks=[watch])


def step_callbacks(strategy):
    model = mlp()
    model.set_asynchronous_callbacks(True)
    model.fit(*data(45), batch_size=4, verbose=0, validation_data=data(19))


def recomputed(strategy):
    model = mlp()
    model.set_recomputation_options(budget=1.0)
    model.fit(*data(40), batch_size=4, verbose=0)


SCENES = [
    ragged,
    longer_and_shorter_results,
    streamed,
    small_blocks,
    epochs_of_parts,
    generator,
    py_dataset,
    weighted,
    unrolled,
    accumulated,
    own_step,
    watched,
    watched_windows,
    step_callbacks,
    recomputed,
]


def replicated(strategy):
    model = mlp(8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    model.fit(*data(4 * 21 + 3), batch_size=4, verbose=0, validation_data=data(27))
    model.predict(data(27)[0], batch_size=4, verbose=0)


def listed_metrics(strategy):
    model = mlp(8)
    model.set_replication_options(replicated_metric_reduction_method="list")
    model.set_infeed_queue_options(max_resident_bytes=0)
    model.fit(*data(4 * 21 + 3), batch_size=4, verbose=0)


def pipelined(strategy):
    inputs = keras.Input((8,))
    with millrace.PipelineStage(0):
        hidden = layers.Dense(6, "relu")(inputs)
    with millrace.PipelineStage(1):
        model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=8)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.fit(*data(4 * 22 + 3), batch_size=4, verbose=0, validation_data=data(10))
    model.predict(data(10)[0], batch_size=4, verbose=0)


def records_of(strategy, scene):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        scene(strategy)
    return {
        (each.program, each.batch, each.capacity, each.unrolled, each.key)
        for each in strategy.compile_log
        if each.is_executable
    }


def compare(scene, devices):
    with compiling_only():
        described = millrace.Strategy(devices)
        expected = records_of(described, scene)
    assert described.statistics().executions == 0
    ran = records_of(millrace.Strategy(devices), scene)
    assert {each[:4] for each in ran} <= {each[:4] for each in expected}
    assert {each[:4] for each in expected} == {each[:4] for each in ran}
    assert expected == ran


@pytest.mark.parametrize(
    "scene",
    slow_but_for(SCENES, "generator", "py_dataset", "recomputed"),
    ids=lambda scene: scene.__name__,
)
def test_a_real_run_compiles_nothing_else(scene):
    compare(scene, 1)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [replicated, pipelined])
def test_a_real_run_on_two_devices_compiles_nothing_else(scene):
    compare(scene, 2)


@pytest.mark.slow
def test_metrics_of_each_replica():
    compare(listed_metrics, 2)


@pytest.mark.slow
def test_results_are_zeros_in_keras_structure(strategy):
    with compiling_only(), strategy.scope():
        model = mlp()
        trained = model
        before = [np.asarray(variable) for variable in model.variables]
        history = model.fit(*data(45), batch_size=4, epochs=3, verbose=0, validation_data=data(19))
        assert set(history.history) == {"loss", "mae", "val_loss", "val_mae"}
        assert set(map(tuple, history.history.values())) == {(0.0, 0.0, 0.0)}
        assert history.epoch == [0, 1, 2]
        assert model.evaluate(*data(45), verbose=0) == [0.0, 0.0]
        assert model.evaluate(*data(45), verbose=0, return_dict=True) == {"loss": 0.0, "mae": 0.0}
        assert model.train_on_batch(*data(4)) == [0.0, 0.0]
        assert model.test_on_batch(*data(4), return_dict=True) == {"loss": 0.0, "mae": 0.0}
        predictions = model.predict(data(45)[0], verbose=0)
        assert (predictions.shape, predictions.dtype) == ((45, 1), np.float32)
        assert not predictions.any()
        assert model.predict_on_batch(data(3)[0]).shape == (3, 1)
        model = keras.Sequential([keras.Input((8,)), layers.Dense(1)])
        model.compile("sgd", "mse")
        assert model.evaluate(*data(45), verbose=0) == 0.0
    for variable, value in zip(trained.variables, before, strict=False):
        np.testing.assert_array_equal(np.asarray(variable), value)
    assert strategy.statistics().dispatches == 0


def test_the_same_model_runs_afterwards(strategy):
    with strategy.scope():
        model = mlp()
    with compiling_only():
        model.fit(*data(40), batch_size=4, verbose=0)
    assert model.fit(*data(40), batch_size=4, verbose=0).history["loss"][0] > 0.0
    assert len(strategy.compile_log) == 1
    assert strategy.statistics().executions == 3


def test_one_batch_is_drawn():
    strategy, given = millrace.Strategy(1), Batches(10)
    with compiling_only(), strategy.scope():
        mlp().fit(given, epochs=3, verbose=0, shuffle=False)
    assert given.drawn <= 2  # Keras looks at the first one itself

    def endless():
        yield from batches(2)  # Keras's data adapter looks at two itself
        raise AssertionError("a third batch was drawn")

    with compiling_only(), strategy.scope():
        mlp().fit(endless(), epochs=3, steps_per_epoch=100, verbose=0, shuffle=False)


def test_callbacks_are_not_called(strategy, tmp_path):
    class Loud(keras.callbacks.Callback):
        def __getattribute__(self, name):
            assert not name.startswith(("on_", "set_"))
            return super().__getattribute__(name)

    saves = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    with compiling_only(), strategy.scope():
        history = mlp().fit(*data(40), verbose=0, callbacks=[Loud(), saves])
    assert history.history["loss"] == [0.0]
    assert not list(tmp_path.iterdir())


def test_files_that_exist_are_spared(strategy, tmp_path, caplog):
    path, weights = tmp_path / "model.keras", tmp_path / "model.weights.h5"
    with strategy.scope():
        model = mlp()
    model.save_weights(weights)
    written = weights.stat().st_mtime_ns
    with compiling_only():
        model.save(path)
        model.save_weights(filepath=str(weights))
    assert path.exists()
    assert weights.stat().st_mtime_ns == written
    assert f"{weights} is left as it is" in caplog.text


def test_stock_models_train_as_ever(strategy):
    with compiling_only():
        assert mlp().fit(*data(40), verbose=0).history["loss"][0] > 0.0


def test_refuses_to_compile_without_a_cache(strategy):
    with (
        compiling_only(),
        strategy.scope(),
        pytest.raises(OptionError, match=r"Set MILLRACE_CACHE_DIR or Strategy\(cache_dir=\.\.\.\)"),
    ):
        mlp().fit(*data(40), verbose=0)
    assert strategy.compile_log == ()


def test_errors_of_fit_are_raised(strategy):
    with compiling_only(), strategy.scope():
        model = mlp(3)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        with pytest.raises(PlanError, match="steps_per_execution=3 is not a whole number of"):
            model.fit(*data(40), batch_size=4, verbose=0)
    assert strategy.compile_log == ()


def test_a_call_that_fails_leaves_nothing_to_be_compiled(strategy):
    with compiling_only(), strategy.scope():
        model = mlp()
        with pytest.raises(ValueError, match="cardinality"):
            model.fit(*data(40), verbose=0, validation_data=(data(8)[0], [data(9)[1]]))
        assert strategy.compile_log == ()
        model.predict(data(40)[0], verbose=0)
    assert {record.program for record in strategy.compile_log} == {"predict_run"}


def test_outputs_of_any_structure(strategy):
    inputs = keras.Input((8,))
    with compiling_only(), strategy.scope():
        outputs = {"a": layers.Dense(2)(inputs), "b": [layers.Dense(3, dtype="float16")(inputs)]}
        model = keras.Model(inputs, outputs)
        found = model.predict(data(10)[0], batch_size=4, verbose=0)
    assert found["a"].shape == (10, 2)
    assert (found["b"][0].shape, found["b"][0].dtype) == ((10, 3), np.float16)


def test_each_thread_compiles_the_programs_of_its_own_loop():
    strategies = [millrace.Strategy(1) for _ in range(2)]
    barrier = threading.Barrier(2)
    losses = []

    def drawn():
        barrier.wait(60)  # both loops have begun before either goes on
        yield from batches(4)

    def fit(strategy):
        with strategy.scope():
            history = mlp().fit(drawn(), steps_per_epoch=4, verbose=0, shuffle=False)
        losses.append(history.history["loss"])

    with compiling_only():
        threads = [threading.Thread(target=fit, args=(each,), daemon=True) for each in strategies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert losses == [[0.0], [0.0]]
    for strategy in strategies:
        assert [record.program for record in strategy.compile_log] == ["train_run"]


def test_blocks_that_overlap_hold_until_the_last_one_ends(strategy):
    with strategy.scope():
        model = mlp()
    with compiling_only():
        with compiling_only(functions=True):
            assert compile_only.is_on_for_functions()
        assert not compile_only.is_on_for_functions()
        assert model.fit(*data(40), batch_size=4, verbose=0).history["loss"] == [0.0]
    assert model.fit(*data(40), batch_size=4, verbose=0).history["loss"][0] > 0.0
