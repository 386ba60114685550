"""Chosen updates of a run with records leave traces, which change nothing else."""

import gc
import itertools
import threading
import time

import jax
import keras
import numpy as np
import pytest
from keras import layers

import millrace
from case_marks import slow
from millrace.errors import TaskError
from millrace.run.pipelines.runtime.tasks import StageTasks
from millrace.run.schedules.table import make_schedule
from millrace.run.timing.tracer import Tracer
from own_threads import own_threads

ROWS, STEPS = 4, 4  # of a micro-batch, of an update


def data(rows, width=6):
    x = np.random.default_rng(0).normal(size=(rows, width)).astype("float32")
    return x, x[:, :1]


def pipeline(directory, stages=(0, 1, 2), devices="cpu:3", updates=1, seed=0, **options):
    strategy = millrace.Strategy(devices=devices, report_dir=directory)
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((6,)), *(layers.Dense(6, "tanh") for _ in stages[1:]), layers.Dense(1)]
        )
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=STEPS, **options)
    model.compile(keras.optimizers.SGD(0.1, 0.9), "mse", steps_per_execution=STEPS * updates)
    return model


def fit(model, updates, **arguments):
    rows = ROWS * STEPS * updates
    return model.fit(*data(rows), batch_size=ROWS, verbose=0, shuffle=False, **arguments)


def traces(directory, mode="train"):
    return [each for each in millrace.records.load(directory).traces if each.mode == mode]


def check_times(trace):
    """Spans lie within the trace, and those of one group do not overlap."""
    end = trace.timeline.end
    for group in range(trace.num_groups):
        spans = [span for span in trace.spans if span.group == group]
        assert all(0 <= span.start <= span.end <= end for span in spans)
        assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
    assert all(0 <= each.start <= each.end for each in trace.activities)


@pytest.mark.parametrize(
    "name", [slow("gpipe"), "1f1b", slow("grouped"), slow("sequential"), slow("zero_bubble")]
)
def test_a_trace_has_the_tasks_of_the_schedule(tmp_path, name):
    fit(pipeline(tmp_path, pipeline_schedule=name), 4)
    found = traces(tmp_path)
    assert [(each.update, each.epoch, each.schedule) for each in found] == [
        (1, 1, name),
        (2, 1, name),
    ]
    for trace in found:
        check_times(trace)
        rows = make_schedule(name, 3, STEPS, (0, 1, 2))
        for group, row in enumerate(rows):
            measured = [str(span) for span in trace.spans if span.group == group]
            assert measured == list(map(str, row))
        assert trace.num_groups == 3
        updates = [each.row for each in trace.activities if each.name == "update"]
        assert sorted(updates) == ["group 0", "group 1", "group 2"]


@pytest.mark.slow
def test_looped_stages_share_their_groups(tmp_path):
    fit(
        pipeline(
            tmp_path, (0, 1, 2, 3), "cpu:2", pipeline_schedule="looped", device_mapping=[0, 1, 0, 1]
        ),
        3,
    )
    trace = traces(tmp_path)[0]
    assert {(span.stage, span.group) for span in trace.spans} == {(0, 0), (1, 1), (2, 0), (3, 1)}
    check_times(trace)


@pytest.mark.slow
def test_later_loops_are_traced_from_their_first_update_on(tmp_path):
    model = pipeline(tmp_path)
    fit(model, 1)  # which compiles
    fit(model, 1)
    fit(model, 1, epochs=5)
    found = traces(tmp_path)
    assert [(each.loop - found[0].loop, each.update) for each in found] == [
        (0, 0), (1, 0), (1, 1), (1, 2), (1, 4)
    ]  # fmt: skip


@pytest.mark.slow
def test_replicas_of_a_pipeline(tmp_path):
    model = pipeline(tmp_path, (0, 1), "cpu:4", updates=2)
    fit(model, 6)  # three updates of two replicas
    trace = traces(tmp_path)[0]
    assert trace.num_groups == 2
    assert len(trace.spans) == 2 * 2 * STEPS
    check_times(trace)


def test_weights_are_equal_with_and_without_traces(tmp_path):
    weights = []
    for directory in (tmp_path, None):
        model = pipeline(directory, updates=2)
        fit(model, 9)
        weights.append(model.get_weights())
    assert traces(tmp_path)
    for with_traces, without in zip(*weights, strict=True):
        np.testing.assert_array_equal(with_traces, without)
    assert own_threads() == []


def test_evaluation_and_prediction_of_a_pipeline(tmp_path):
    model = pipeline(tmp_path)
    x, y = data(ROWS * 40)
    model.evaluate(x, y, batch_size=ROWS, verbose=0)
    model.predict(x[: 5 * ROWS], batch_size=ROWS, verbose=0)
    found = traces(tmp_path, "test")
    assert [(each.update, each.updates) for each in found] == [(2, 8), (17, 8), (33, 7)]
    assert len(found[0].spans) == 3 * 8
    assert {span.micro_batch for span in found[0].spans} == set(range(8))
    short = traces(tmp_path, "predict")
    assert [(each.update, each.updates) for each in short] == [(2, 3)]
    for each in (*found, *short):
        check_times(each)


def whole(directory, steps_per_execution, updates=1):
    strategy = millrace.Strategy(devices=1, report_dir=directory)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    if updates > 1:
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=updates)
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


@pytest.mark.parametrize("steps_per_execution", [slow(1), 10])
def test_calls_of_a_model_in_one_piece(tmp_path, steps_per_execution):
    model = whole(tmp_path, steps_per_execution)
    model.fit(*data(ROWS * 40), batch_size=ROWS, verbose=0)
    found = traces(tmp_path)
    executions = 40 // steps_per_execution
    chosen = [k for k in (1, 2, 4, 8, 16, 32) if k < executions]
    assert [each.update for each in found] == [k * steps_per_execution for k in chosen]
    for trace in found:
        assert trace.updates == steps_per_execution
        assert trace.spans == ()
        calls = [each for each in trace.activities if each.row == "group 0"]
        assert [each.name for each in calls] == [f"{steps_per_execution} steps"]
        check_times(trace)


@pytest.mark.slow
def test_calls_of_an_update_in_parts(tmp_path):
    """Batches of another size within an update: it takes several calls, and one that applies."""
    model = whole(tmp_path, 8, updates=8)
    batches = [data(4)] * 6 + [data(2)] * 2
    model.fit((each for each in batches * 4), steps_per_epoch=32, verbose=0, shuffle=False)
    trace = traces(tmp_path)[-1]
    names = [each.name for each in trace.activities if each.row == "group 0"]
    assert names == ["6 steps", "2 steps", "update"]
    assert trace.updates == 1


@pytest.mark.slow
def test_the_host_and_the_infeed_have_rows(tmp_path):
    model = pipeline(tmp_path, updates=8)

    def batches():
        x, y = data(ROWS)
        while True:
            time.sleep(0.004)
            yield x, y

    model.fit(batches(), steps_per_epoch=STEPS * 32, verbose=0, shuffle=False)
    rows = {each.row for trace in traces(tmp_path) for each in trace.activities}
    assert {"host", "infeed", "group 0"} <= rows


def test_a_failed_task_leaves_no_trace_and_no_thread(tmp_path, monkeypatch):
    model, calls = pipeline(tmp_path), []
    backward = StageTasks.backward

    def fails(self, micro_batch, *arguments):
        calls.append(micro_batch)
        if len(calls) == 3 * STEPS + 5:  # in the second update
            raise RuntimeError("no more")
        return backward(self, micro_batch, *arguments)

    monkeypatch.setattr(StageTasks, "backward", fails)
    with pytest.raises(TaskError, match="no more"):
        fit(model, 6)
    assert traces(tmp_path) == []
    assert own_threads() == []
    monkeypatch.undo()
    fit(model, 2)
    assert [each.update for each in traces(tmp_path)] == [0, 1]


@pytest.mark.slow
def test_an_interrupt_ends_the_threads(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch > STEPS:
                raise KeyboardInterrupt

    model = pipeline(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        fit(model, 6, callbacks=[Interrupt()])
    assert own_threads() == []


@pytest.mark.slow
def test_a_full_disk_ends_traces_and_not_the_training(tmp_path, monkeypatch, caplog):
    model = pipeline(tmp_path)
    fit(model, 1)
    (tmp_path / "traces.jsonl").mkdir()
    fit(model, 3)
    assert "no longer written" in caplog.text


@pytest.mark.slow
def test_traces_that_cannot_be_made_are_dropped(tmp_path, monkeypatch):
    """Recording must not end a training: whatever goes wrong in its threads stays there."""
    monkeypatch.setattr("millrace.run.timing.measurement._time", lambda *_: 1 / 0)
    fit(pipeline(tmp_path), 4)
    assert traces(tmp_path) == []
    assert own_threads() == []


@pytest.mark.slow
def test_a_run_has_a_bounded_number_of_spans(tmp_path, monkeypatch):
    monkeypatch.setattr("millrace.run.timing.tracer.MOST_SPANS", 0)
    model = pipeline(tmp_path)
    model._millrace.totals.trace_budget.__init__(2 * STEPS * 3 * 2 + 1)
    fit(model, 20)
    assert len(traces(tmp_path)) == 2


def test_without_records_there_is_no_tracer(monkeypatch):
    made = []
    monkeypatch.setattr(Tracer, "__init__", lambda self, subject: made.append(subject))
    fit(pipeline(None), 3)
    assert made == []
    assert not any(each.name == "millrace-timing" for each in threading.enumerate())


@pytest.mark.slow
def test_an_update_that_compiles_leaves_no_trace(tmp_path):
    model = whole(tmp_path, 1)
    x, y = data(ROWS * 4 + 1)  # the last batch, of one row, is execution 4
    model.fit(x, y, batch_size=ROWS, verbose=0)
    assert [each.update for each in traces(tmp_path)] == [1, 2]


@pytest.mark.slow
def test_a_stage_with_one_large_weight(tmp_path):
    """All results of its backward are donated, and too large to copy."""
    strategy = millrace.Strategy(devices="cpu:2", report_dir=tmp_path)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((8,)), layers.Embedding(1000, 32), layers.Flatten(), layers.Dense(1)]
        )
    model.set_pipeline_stage_assignment([0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=STEPS)
    model.compile("sgd", "mse", steps_per_execution=STEPS)
    rows = ROWS * STEPS * 3
    x = np.arange(rows * 8).reshape(rows, 8) % 1000
    model.fit(x, np.zeros((rows, 1)), batch_size=ROWS, verbose=0, shuffle=False)
    for trace in traces(tmp_path):
        check_times(trace)
        assert len(trace.spans) == 2 * 2 * STEPS
    assert len(traces(tmp_path)) == 2


@pytest.mark.slow
def test_no_arrays_stay_behind(tmp_path):
    model = pipeline(tmp_path, updates=4)
    numbers = []
    for _ in range(3):
        fit(model, 8)
        gc.collect()
        numbers.append(len(jax.live_arrays()))
    assert len(traces(tmp_path)) > 10
    assert numbers[2] <= numbers[1]


def test_train_on_batch_leaves_no_thread(tmp_path):
    model = whole(tmp_path, 1)
    for _ in range(6):
        model.train_on_batch(*data(ROWS))
        assert own_threads() == []
    assert [each.update for each in traces(tmp_path)] == [1, 2, 4]
