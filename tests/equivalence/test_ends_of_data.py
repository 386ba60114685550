"""Data that ends before an epoch is over: what plain Keras reports, whatever runs the steps."""

import csv
import functools

import keras
import numpy as np
import pytest
from compared_loops import PLAIN, Way, printed, run
from packaging.version import Version

from for_versions import needs_keras
from millrace.callbacks import NaNWatch, TensorStatistics
from millrace_ipu import tensorflow as tf

RTOL = 1e-5  # float32 losses, of programs that add in another order
BATCHES, ROWS = 7, 4
STEPS = [1, 5, 3]  # of an execution: of epochs of 5 steps, a divisor, the whole and neither


def rows(batches=BATCHES):
    random = np.random.default_rng(8)
    x = random.normal(size=(batches * ROWS, 3)).astype("float32")
    return x, 3 * random.normal(size=(batches * ROWS, 1)).astype("float32")


def generate(batches=BATCHES, last=None):
    x, y = rows(batches)
    for begin in range(0, len(x), ROWS):
        is_last = last is not None and begin + ROWS == len(x)
        yield x[begin : begin + ROWS], y[begin : begin + ROWS] * (last if is_last else 1)


class Batches(keras.utils.PyDataset):
    def __init__(self, batches=BATCHES):
        super().__init__()
        self.x, self.y = rows(batches)
        self.told = []

    def __len__(self):
        return len(self.x) // ROWS

    def __getitem__(self, index):
        part = slice(index * ROWS, (index + 1) * ROWS)
        return self.x[part], self.y[part]

    def on_epoch_begin(self):
        self.told.append("begin")

    def on_epoch_end(self):
        self.told.append("end")
        self.x = self.x * 0.9


def arrays(**more):
    x, y = rows()
    return {"x": x, "y": y, "batch_size": ROWS} | more


def grain(kind):
    library = pytest.importorskip("grain")
    dataset = library.MapDataset.source(list(zip(*rows(), strict=True)))
    return dataset.batch(ROWS) if kind == "map" else dataset.to_iter_dataset().batch(ROWS)


def torch_loader():
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(*[torch.from_numpy(leaf) for leaf in rows()])
    return torch.utils.data.DataLoader(dataset, batch_size=ROWS)


def tf_data(module, is_known):
    dataset = module.data.Dataset.from_tensor_slices(rows())
    return (dataset if is_known else dataset.filter(lambda x, y: y[0] < 100)).batch(ROWS)


def real_tf_data():
    return tf_data(pytest.importorskip("tensorflow"), False)


def weighted():
    for index, (x, y) in enumerate(generate()):
        yield x, y, np.linspace(0.5, 1.5, ROWS) + index


SOURCES = {
    "generator": generate,
    "generator-of-weights": weighted,
    "PyDataset": Batches,
    "arrays": arrays,
    "arrays-sample-weight": lambda: arrays(sample_weight=np.linspace(0, 2, BATCHES * ROWS)),
    "grain-map": functools.partial(grain, "map"),
    "grain-iter": functools.partial(grain, "iter"),
    "torch": torch_loader,
    "tf.data-stand-in": functools.partial(tf_data, tf, True),
    "tf.data-stand-in-unknown": functools.partial(tf_data, tf, False),
    "tensorflow": real_tf_data,
}
sources = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def skip_if_keras_looks_ahead(source, *sources):
    """Plain Keras drew batches ahead on CPU until 3.14, and lost them where a loop ended."""
    if source in sources and Version(keras.__version__).release < (3, 15):
        pytest.skip("keras <3.15 loses batches that it has drawn ahead")


@functools.cache
def plain(loop, source, **arguments):
    return run(loop, source, PLAIN, **arguments)


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], RTOL, err_msg=name)


def assert_calls_are_close(found, expected):
    assert [call[:2] for call in found] == [call[:2] for call in expected]
    for (*_, logs), (*_, others) in zip(found, expected, strict=True):
        assert_close(logs, others)


def told(seen):
    """What a PyDataset was told once the model was built: the first fit of a model builds it."""
    calls = getattr(seen.data, "told", None)
    return calls and calls[calls.index("end") + 1 :]


def assert_same(found, expected):
    """Compares what does not depend on the number of steps in an execution."""
    assert_close(found.result, expected.result)
    assert found.out_of_data == expected.out_of_data
    assert found.updates == expected.updates
    names = ("epoch_begin", "epoch_end", "train_end", "test_end")
    assert_calls_are_close(found.of(*names), expected.of(*names))
    assert told(found) == told(expected)


# Steps of an epoch, epochs: the data ends within the second one, with the first one, in the first
# one, at the end of the second one but no later.
FITS = [(5, 4), (BATCHES, 3), (20, 3), (4, 2)]


@pytest.mark.parametrize("steps", STEPS)
@sources
def test_fit(source, steps):
    skip_if_keras_looks_ahead(source, Batches)
    for steps_per_epoch, epochs in FITS:
        arguments = {"steps_per_epoch": steps_per_epoch, "epochs": epochs}
        expected = plain("fit", source, **arguments)
        found = run("fit", source, Way(steps), **arguments)
        assert_same(found, expected)
        if steps == 1:
            assert_calls_are_close(found.calls, expected.calls)


def test_the_epoch_after_the_end_is_no_epoch_of_loss_zero():
    """The batches that Keras drew to look at are all that it still has of a generator."""
    losses = run("fit", generate, Way(5), steps_per_epoch=5, epochs=3).result["loss"]
    assert len(losses) == 3
    assert min(losses) > 1


def test_an_epoch_without_a_batch_repeats_the_logs_before_it():
    expected = plain("fit", generate, steps_per_epoch=BATCHES, epochs=2)
    assert expected.result["loss"][0] == expected.result["loss"][1]
    for steps in STEPS:
        assert_same(run("fit", generate, Way(steps), steps_per_epoch=BATCHES, epochs=2), expected)


@pytest.mark.parametrize("steps", STEPS)
def test_a_length_that_nobody_knows_is_found_out_without_a_warning(steps):
    """Keras warned there until 3.16. What comes after is the same: a generator has no more."""
    expected = plain("fit", generate, epochs=3)
    found = run("fit", generate, Way(steps), epochs=3)
    assert_close(found.result, expected.result)
    assert found.updates == expected.updates == BATCHES + 2 + 2
    assert found.out_of_data == max(expected.out_of_data - 1, 0)


@pytest.mark.parametrize("steps", [1, 3])
@sources
def test_evaluate_and_predict(source, steps):
    for asked in (BATCHES, 12):
        for loop in ("evaluate", "predict"):
            expected = plain(loop, source, steps=asked)
            found = run(loop, source, Way(steps), steps=asked)
            assert found.out_of_data == expected.out_of_data == (asked > BATCHES)
            if loop == "evaluate":
                assert_close(found.result, expected.result)
            else:
                np.testing.assert_allclose(found.result, expected.result, RTOL)


@sources
def test_validation_data(source):
    skip_if_keras_looks_ahead(source, generate, weighted)

    def validation():
        data = source()
        return (data["x"], data["y"]) if isinstance(data, dict) else data

    for validation_steps in (3, 12):
        arguments = {"epochs": 3, "validation_steps": validation_steps}
        expected = run("fit", arrays, PLAIN, validation_data=validation(), **arguments)
        found = run("fit", arrays, Way(3), validation_data=validation(), **arguments)
        assert_same(found, expected)


@pytest.mark.parametrize("steps", STEPS)
def test_class_weight(steps):
    def classes():
        return arrays(y=(rows()[1] > 0).astype("int32"))

    arguments = {"steps_per_epoch": 5, "epochs": 3, "class_weight": {0: 0.5, 1: 2.0}}
    expected = run("fit", classes, **arguments)
    assert_same(run("fit", classes, Way(steps), **arguments), expected)


@needs_keras(">=3.15", reason="says that a generator is empty")
@pytest.mark.parametrize("way", [PLAIN, Way(1), Way(3)])
def test_an_empty_generator(way):
    with pytest.raises(ValueError, match="must yield at least one batch"):
        run("fit", lambda: generate(0), way, steps_per_epoch=5)


@pytest.mark.parametrize("way", [PLAIN, Way(1), Way(3), Way(5)])
def test_a_generator_that_raises(way):
    def failing():
        yield from generate(6)
        raise OSError("disk gone")

    ended = []
    noted = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ended.append(epoch))
    with pytest.raises(OSError, match="disk gone"):
        run("fit", failing, way, steps_per_epoch=5, epochs=3, callbacks=[noted])
    assert ended == [0]
    assert run("fit", generate, way).updates == BATCHES  # the model continues


def accumulate(model):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)


def two_stages(model):
    model.set_pipeline_stage_assignment([0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)


def each_step(model):
    model.set_asynchronous_callbacks(True)


@pytest.mark.parametrize(
    ("setting", "devices", "steps"),
    [(accumulate, 1, 4), (None, 2, 1), (None, 2, 4), (two_stages, 2, 4)],
    ids=["accumulation", "replicas-1", "replicas-4", "pipeline"],
)
def test_steps_that_belong_to_one_update(setting, devices, steps):
    """With a rate of 0: how batches make updates is of no concern here."""
    way = Way(steps, devices, setting, rate=0.0)
    for steps_per_epoch, epochs in ((4, 4), (20, 3)):
        arguments = {
            "steps_per_epoch": steps_per_epoch,
            "epochs": epochs,
            "validation_data": (rows(5)[0], rows(5)[1]),
        }
        expected = run("fit", generate, Way(devices=None, rate=0.0), **arguments)
        found = run("fit", generate, way, **arguments)
        assert_close(found.result, expected.result)
        assert found.out_of_data == expected.out_of_data > 0
        ends = found.of("epoch_end")
        assert_calls_are_close(ends, expected.of("epoch_end"))
    expected, found = [run("evaluate", generate, each, steps=12) for each in (PLAIN, way)]
    assert_close(found.result, expected.result)
    assert found.out_of_data == expected.out_of_data == 1


@pytest.mark.parametrize("source", [generate, Batches, arrays])
@pytest.mark.parametrize("steps", STEPS)
def test_asynchronous_callbacks_see_the_calls_of_single_steps(source, steps):
    skip_if_keras_looks_ahead(source, Batches)
    for steps_per_epoch, epochs in FITS:
        arguments = {"steps_per_epoch": steps_per_epoch, "epochs": epochs}
        expected = plain("fit", source, **arguments)
        found = run("fit", source, Way(steps, 1, each_step), **arguments)
        assert_same(found, expected)
        assert_calls_are_close(found.calls, expected.calls)


def early_stopping(directory):
    return keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)


def checkpoint(directory):
    path = str(directory / "best.weights.h5")
    return keras.callbacks.ModelCheckpoint(path, "loss", 0, True, save_weights_only=True)


def plateau(directory):
    return keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=1, min_delta=1.0)


def csv_logger(directory):
    return keras.callbacks.CSVLogger(directory / "log.csv")


def backup(directory):
    return keras.callbacks.BackupAndRestore(str(directory / "backup"))


def terminate(directory):
    return keras.callbacks.TerminateOnNaN()


def evidence(callback, directory, model):
    """Returns what a callback has found, kept or written."""
    found = {"rate": float(model.optimizer.learning_rate)}
    found |= {f"weight {i}": w for i, w in enumerate(model.get_weights())}
    for name in ("best", "best_epoch", "stopped_epoch", "wait"):
        if hasattr(callback, name):
            found[name] = float(getattr(callback, name))
    for path in directory.rglob("*.csv"):
        with path.open() as file:
            lines = list(csv.DictReader(file))
        found["csv"] = np.array([float(line["loss"]) for line in lines])
    for path in directory.rglob("best.weights.h5"):
        model.load_weights(path)
        found |= {f"saved {i}": w for i, w in enumerate(model.get_weights())}
    return found


CALLBACKS = [early_stopping, checkpoint, plateau, csv_logger, backup, terminate]


@pytest.mark.parametrize("make", CALLBACKS)
def test_callbacks_that_read_logs(make, tmp_path):
    for steps_per_epoch in (5, 20):
        results = []
        for number, way in enumerate([PLAIN, *map(Way, STEPS), Way(3, 1, each_step)]):
            directory = tmp_path / f"{steps_per_epoch}-{number}"
            directory.mkdir()
            callback = make(directory)
            arguments = {"steps_per_epoch": steps_per_epoch, "epochs": 5, "callbacks": [callback]}
            seen = run("fit", generate, way, **arguments)
            results.append((seen, evidence(callback, directory, seen.model)))
        for seen, found in results[1:]:
            assert_close(seen.result, results[0][0].result)
            assert_close(found, results[0][1])


@pytest.mark.parametrize("way", [*map(Way, STEPS), Way(3, 1, each_step)])
def test_what_the_progress_bar_prints(way, capsys):
    texts = []
    for each in (PLAIN, way):
        run("fit", generate, each, steps_per_epoch=5, epochs=4, verbose=2)
        texts.append(printed(capsys.readouterr().out))
    assert texts[1] == texts[0]
    assert any("loss" in line for line in texts[0])


def test_a_nan_in_the_last_batch_before_the_end_stops_training():
    for way in (PLAIN, *map(Way, STEPS)):
        callbacks = [keras.callbacks.TerminateOnNaN()]
        source = functools.partial(generate, last=np.float32("nan"))
        arguments = {"steps_per_epoch": 5, "epochs": 5, "callbacks": callbacks}
        seen = run("fit", source, way, **arguments)
        losses = seen.result["loss"]
        assert len(losses) == 2
        assert np.isnan(losses[1])


def test_callbacks_of_millrace_count_the_steps_that_were_run():
    statistics = TensorStatistics(gradients="*")
    watch = NaNWatch(directory=None)
    arguments = {"steps_per_epoch": 5, "epochs": 3}
    found = run("fit", generate, Way(3), callbacks=[statistics, watch], **arguments)
    assert_same(found, plain("fit", generate, **arguments))
    assert watch.found is None
    assert len(set(statistics.history["update"])) == found.updates == BATCHES + 2
