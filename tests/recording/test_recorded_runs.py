"""Runs that leave records: by a variable, by an argument, by a callback."""

import os
import re
import shutil

import jax
import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace.errors import ModelError, OptionError
from millrace.tools.recording import page
from millrace.tools.reports.page import write_page

X = np.linspace(0, 1, 128, dtype="float32").reshape(32, 4)
Y = X.sum(1, keepdims=True)


def make_model(strategy, name="mlp", **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name=name)
    model.compile("sgd", "mse", **options)
    return model


def test_fit_evaluate_and_predict_leave_records(tmp_path):
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path), steps_per_execution=2)
    history = model.fit(X, Y, batch_size=8, epochs=3, validation_data=(X, Y), verbose=0)
    model.evaluate(X, Y, batch_size=8, verbose=0)
    model.predict(X, batch_size=8, verbose=0)
    run = millrace.records.load(tmp_path)
    assert run.damaged == {}
    (process,) = run.processes
    assert (process.pid, process.platform) == (os.getpid(), "cpu")
    assert process.devices == (str(jax.devices()[0]),)
    assert process.versions["keras"] == keras.__version__
    assert [(loop.mode, loop.outcome) for loop in run.loops] == [
        ("train", "finished"), ("test", "finished"), ("predict", "finished")
    ]  # fmt: skip
    fit = run.loops[0]
    assert (fit.model, fit.parameters, fit.epochs, fit.stages, fit.replicas) == ("mlp", 5, 3, 1, 1)
    assert (fit.executions, fit.steps) == (3 * (2 + 2), 3 * (4 + 4))
    assert fit.options["steps_per_execution"] == "2"
    assert 0 < fit.compile_seconds <= fit.seconds
    assert [epoch.epoch for epoch in run.epochs] == [1, 2, 3]
    assert [epoch.logs["loss"] for epoch in run.epochs] == history.history["loss"]
    assert [epoch.logs["val_loss"] for epoch in run.epochs] == history.history["val_loss"]
    steps = {}
    for sample in run.executions:
        key = sample.loop - fit.number, sample.mode
        steps[key] = steps.get(key, 0) + sample.steps
        assert sample.seconds >= 0
    assert steps == {(0, "train"): 12, (0, "test"): 12, (1, "test"): 4, (2, "predict"): 4}
    assert sum(feed.steps for feed in run.feeds if feed.mode == "train") == 12


def test_a_strategy_shows_its_run_in_a_notebook(tmp_path):
    strategy = millrace.Strategy(devices=1, report_dir=tmp_path)
    model = make_model(strategy)
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0)
    run = strategy.records()
    assert [loop.model for loop in run.loops] == ["mlp"]
    assert "update" in str(run.trace)
    assert "p parameters" in str(run.memory["train"])
    with pytest.raises(OptionError, match=r"records\(\) reads .*report_dir=.*MILLRACE_REPORT_DIR"):
        millrace.Strategy(devices=1).records()


def test_a_directory_is_used_again(tmp_path):
    for _ in range(2):
        model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path))
        model.fit(X, Y, verbose=0)
    run = millrace.records.load(tmp_path)
    assert len({loop.number for loop in run.loops}) == len(run.loops) == 2


def test_a_callback_records_one_call(tmp_path):
    strategy = millrace.Strategy(devices=1)
    model = make_model(strategy)
    model.fit(X, Y, verbose=0)
    history = model.fit(
        X, Y, epochs=2, verbose=0, validation_data=(X, Y),
        callbacks=[millrace.callbacks.Report(tmp_path / "fit")],
    )  # fmt: skip
    model.predict(X, verbose=0, callbacks=[millrace.callbacks.Report(tmp_path / "predict")])
    model.fit(X, Y, verbose=0)
    fit, predict = (millrace.records.load(tmp_path / name) for name in ("fit", "predict"))
    (loop,) = fit.loops
    assert (loop.mode, loop.outcome, loop.executions, loop.epochs) == ("train", "finished", 4, 2)
    assert [epoch.logs["val_loss"] for epoch in fit.epochs] == history.history["val_loss"]
    assert [loop.mode for loop in predict.loops] == ["predict"]
    assert (tmp_path / "fit" / "report.html").stat().st_size > 10_000
    assert len(fit.processes) == len(predict.processes) == 1


def test_a_callback_tells_what_was_compiled_before_it(tmp_path):
    strategy = millrace.Strategy(devices=1)
    model, other = make_model(strategy), make_model(strategy, name="other")
    other.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0)
    for _ in range(2):
        report = millrace.callbacks.Report(tmp_path / "run")
        model.fit(X, Y, verbose=0, callbacks=[report])
    run = millrace.records.load(tmp_path / "run")
    made = [each for each in run.compilations if each.is_executable]
    assert [(record.model, record.program) for record in made] == [("mlp", "train_run")]
    assert [loop.compile_seconds for loop in run.loops] == [0, 0]
    model.evaluate(X, Y, verbose=0, callbacks=[millrace.callbacks.Report(tmp_path / "run")])
    run = millrace.records.load(tmp_path / "run")
    made = [each for each in run.compilations if each.is_executable]
    assert [record.program for record in made] == ["train_run", "test_run"]


def test_a_callback_and_a_strategy_both_record(tmp_path):
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path / "all"))
    model.fit(X, Y, verbose=0)
    model.fit(X, Y, verbose=0, callbacks=[millrace.callbacks.Report(tmp_path / "one")])
    both, one = (millrace.records.load(tmp_path / name) for name in ("all", "one"))
    assert [loop.executions for loop in both.loops] == [1, 1]
    assert one.loops == both.loops[1:]
    assert one.executions == both.executions[1:]


def test_a_callback_wants_a_strategy(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="alone")
    model.compile("sgd", "mse")
    report = millrace.callbacks.Report(tmp_path / "run")
    with pytest.raises(ModelError, match=r"'alone' belongs to no strategy.*strategy\.attach"):
        model.fit(X, Y, verbose=0, callbacks=[report])
    assert not (tmp_path / "run").exists()
    with pytest.raises(OptionError, match=r"directory must be the path"):
        millrace.callbacks.Report(3)


class Stops(keras.callbacks.Callback):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise self.error


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (ValueError("\nbad\nrow"), "failed", "ValueError: bad"),
    ],
)
def test_a_loop_that_is_ended_by_an_error(tmp_path, error, outcome, text):
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path))
    with pytest.raises(type(error)):
        model.fit(X, Y, epochs=5, verbose=0, callbacks=[Stops(error)])
    run = millrace.records.load(tmp_path)
    (loop,) = run.loops
    assert (loop.outcome, loop.error, loop.executions) == (outcome, text, 2)
    assert loop.ended > loop.began
    assert [epoch.epoch for epoch in run.epochs] == [1]  # Keras has no logs of the second
    assert (tmp_path / "report.html").exists()


def test_functions_loops_and_batches(tmp_path):
    strategy = millrace.Strategy(devices=1, report_dir=tmp_path)
    model = make_model(strategy)
    for _ in range(3):
        model.train_on_batch(X, Y)

    @millrace.compile
    def add(a):
        return a + 1

    with strategy.scope():
        for _ in range(4):
            millrace.repeat(5, lambda x: x + 1.0, inputs=1.0)
        add(2.0)
    for _ in range(2):
        strategy.run(add, [1.0])
    with pytest.raises(TypeError):
        strategy.run(jax.jit(lambda x: x + "a"), [1.0])
    for run in millrace.tools.recording.run._runs.values():
        if run.directory.path == tmp_path:
            run.end()  # as at exit
    run = millrace.records.load(tmp_path)
    loops = [(loop.mode, loop.outcome, loop.executions, loop.steps) for loop in run.loops]
    assert loops == [
        ("train", "finished", 3, 3),
        ("function", "finished", 4, 20),
        ("function", "finished", 3, 3),
        ("function", "failed", 0, 0),
    ]
    assert run.loops[2].model == "add"
    assert run.loops[2].compile_seconds > 0
    assert run.loops[3].error.startswith("TypeError: ")
    assert sum(sample.executions for sample in run.executions) == 10


@pytest.mark.slow
def test_a_memory_report_a_budget_and_tensors(tmp_path):
    strategy = millrace.Strategy(devices=1, report_dir=tmp_path)
    model = make_model(strategy)
    report = strategy.memory_report(model, (X, Y))
    model.set_recomputation_options(budget="1GB")
    statistics = millrace.callbacks.TensorStatistics("*", "*")
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[statistics])
    run = millrace.records.load(tmp_path)
    assert run.memory_reports == (report,)
    assert len(run.loops) == 1
    assert run.budgets == strategy.statistics().budgets
    assert len(run.budgets) >= 1
    loop = run.loops[0]
    compiled = [each.seconds for each in run.compilations if each.began >= loop.began]
    assert loop.compile_seconds > sum(compiled)  # the search for the budget, too
    assert loop.compile_seconds >= loop.planning_seconds > sum(compiled[:1])
    kernel = [each for each in run.tensors if each.tensor.name.endswith("/kernel")]
    assert [each.epoch for each in kernel] == [1, 2]
    assert [each.steps for each in kernel] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    mean = statistics.history["mean"][statistics.history["name"] == kernel[0].tensor.name]
    assert [row[0] for each in kernel for row in each.values] == mean.tolist()


@pytest.mark.slow
def test_a_nan_leaves_a_note(tmp_path):
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path / "run"))
    watch = millrace.callbacks.NaNWatch(directory=tmp_path / "flights")
    model.fit(X, Y * np.inf, verbose=0, callbacks=[watch])
    (note,) = millrace.records.load(tmp_path / "run").flights
    assert (note.model, note.directory) == ("mlp", str(watch.written))
    assert note.text == str(watch.found)


@pytest.mark.parametrize("steps_per_execution", [1, slow(3)])
def test_weights_are_the_same_with_and_without_records(tmp_path, steps_per_execution):
    weights = []
    for report_dir in (None, tmp_path):
        keras.utils.set_random_seed(3)
        strategy = millrace.Strategy(devices=1, report_dir=report_dir)
        with strategy.scope():
            dense, dropout = keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5)
            model = keras.Sequential([keras.Input((4,)), dense, dropout, keras.layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=steps_per_execution)
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, validation_data=(X, Y))
        weights.append(
            [variable.numpy() for variable in (*model.weights, *model.optimizer.variables)]
        )
    for plain, recorded in zip(*weights, strict=True):
        assert plain.tobytes() == recorded.tobytes()


class Ruins(keras.callbacks.Callback):
    """Removes the directory of a run, or fills its disk, after the first epoch."""

    def __init__(self, directory, how):
        super().__init__()
        self.directory, self.how = directory, how

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and self.how == "removed":
            shutil.rmtree(self.directory)
        elif epoch == 0:
            for name in ("executions", "epochs", "loops"):
                (self.directory / f"{name}.jsonl").unlink(missing_ok=True)
                (self.directory / f"{name}.jsonl").symlink_to("/dev/full")


@pytest.mark.parametrize("how", ["removed", "full"])
def test_training_goes_on_without_a_directory(tmp_path, caplog, how):
    directory = tmp_path / "run"
    model = make_model(millrace.Strategy(devices=1, report_dir=directory))
    history = model.fit(X, Y, epochs=4, verbose=0, callbacks=[Ruins(directory, how)])
    model.fit(X, Y, verbose=0)
    assert len(history.history["loss"]) == 4
    (message,) = [each for each in caplog.messages if "ecords" in each or "report" in each]
    assert message.startswith(f"Records are no longer written to {directory}: ")
    assert directory.exists() is (how == "full")
    if how == "removed":
        make_model(millrace.Strategy(devices=1, report_dir=directory)).fit(X, Y, verbose=0)
        run = millrace.records.load(directory)
        assert (len(run.processes), [loop.executions for loop in run.loops]) == (1, [1])


def test_a_page_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "report.html").mkdir()
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path))
    model.fit(X, Y, verbose=0)
    for run in millrace.tools.recording.run._runs.values():
        run.end()
    assert [each for each in caplog.messages if str(tmp_path) in each] == [
        f"{tmp_path / 'report.html'} could not be written."
    ]
    assert len(millrace.records.load(tmp_path).loops) == 1


@pytest.mark.parametrize(("seconds", "pages"), [(0.0, [1, 2, 3, 4]), (30.0, [4])])
def test_the_page_is_written_after_an_epoch_if_it_is_time(tmp_path, monkeypatch, seconds, pages):
    written = []

    def write(runs, path):
        written.append(len(runs[0].epochs))
        return write_page(runs, path)

    monkeypatch.setattr(page, "SECONDS", seconds)
    monkeypatch.setattr(page, "EPOCH_SHARE", 0)
    monkeypatch.setattr(page, "write_page", write)
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path))
    model.fit(X, Y, epochs=4, verbose=0)
    assert written == pages


def test_a_variable_names_the_directory_of_all_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_REPORT_DIR", tmp_path.name)
    for name in ("first", "second"):
        monkeypatch.chdir(tmp_path.parent if name == "first" else tmp_path)
        make_model(millrace.Strategy(devices=1), name).fit(X, Y, verbose=0)
    (directory,) = tmp_path.iterdir()
    assert re.fullmatch(rf".+-\d{{8}}-\d{{6}}-{os.getpid()}", directory.name)
    assert [loop.model for loop in millrace.records.load(tmp_path).loops] == ["first", "second"]
    monkeypatch.setenv("MILLRACE_REPORT_DIR", "")
    make_model(millrace.Strategy(devices=1)).fit(X, Y, verbose=0)
    assert len(millrace.records.load(tmp_path).loops) == 2


def test_a_variable_that_names_no_directory(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MILLRACE_REPORT_DIR", str(tmp_path / "file"))
    with pytest.raises(OptionError, match=r"MILLRACE_REPORT_DIR='.*file' is no directory.* to one"):
        millrace.Strategy(devices=1)


def test_short_loops_beyond_some_hundred_share_a_record(tmp_path, monkeypatch):
    monkeypatch.setattr(millrace.run.recording.pace, "MANY", 0)
    model = make_model(millrace.Strategy(devices=1, report_dir=tmp_path))
    for _ in range(6):
        model.predict(X, verbose=0)
    for run in millrace.tools.recording.run._runs.values():
        run.end()
    run = millrace.records.load(tmp_path)
    assert sorted(loop.executions for loop in run.loops) == [1, 5]
    assert sum(sample.executions for sample in run.executions) == 6
