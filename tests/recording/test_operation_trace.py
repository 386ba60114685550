"""The times of operations, by JAX's profiler."""

import types

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError
from millrace.tools.operations.profile import times_of
from millrace.tools.recording import operation_trace

X, Y = np.ones((256, 64), "float32"), np.ones((256, 8), "float32")


def trained(directory, monkeypatch, executions="2", stages=1, prepare=None):
    monkeypatch.setenv("MILLRACE_REPORT_TRACE", executions)
    strategy = millrace.Strategy(devices=stages, cache_dir=None, report_dir=directory)
    with strategy.scope():
        layers = [keras.layers.Dense(256, "tanh", name=f"wide{n}") for n in range(2)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(8)], name="m")
    model.compile("sgd", "mse", steps_per_execution=4)
    if stages > 1:
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        assignment = model.get_pipeline_stage_assignment()
        for number, each in enumerate(assignment):
            each.pipeline_stage = int(number > 0)
        model.set_pipeline_stage_assignment(assignment)
    if prepare is not None:
        prepare(model)
    model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
    model.get_weights()
    return model, {each.program: each for each in millrace.records.load(directory).operations}


def test_operations_have_times(tmp_path, monkeypatch):
    _, records = trained(tmp_path, monkeypatch)
    record = records["train_run"]
    assert record.calls == 2
    assert record.overhead is not None
    assert record.overhead > -0.9
    seconds = {(each.owner, each.kind): each.seconds for each in record.groups}
    assert None not in seconds.values()
    assert seconds["wide1", "forward"] > 0
    assert seconds["wide1", "backward"] > 0
    assert sum(seconds.values()) > 0
    assert sum(seconds.values()) <= record.traced_seconds * 1.5
    (profile, *_) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert profile.stat().st_size < 5_000_000


def test_nothing_is_traced_unless_it_is_asked_for(tmp_path, monkeypatch):
    _, records = trained(tmp_path, monkeypatch, "0")
    assert records["train_run"].calls == 0
    assert {each.seconds for each in records["train_run"].groups} == {None}
    assert not (tmp_path / "plugins").exists()


def test_the_numbers_of_training_are_the_same(tmp_path, monkeypatch):
    keras.utils.set_random_seed(3)
    plain, _ = trained(tmp_path / "a", monkeypatch, "0")
    keras.utils.set_random_seed(3)
    traced, _ = trained(tmp_path / "b", monkeypatch, "2")
    for a, b in zip(plain.get_weights(), traced.get_weights(), strict=True):
        assert np.array_equal(a, b)


def test_stages_of_a_pipeline_have_times(tmp_path, monkeypatch):
    _, records = trained(tmp_path, monkeypatch, stages=2)
    backward = records["train_backward of stage 1"]
    assert backward.calls == 2 * 4
    assert {each.owner for each in backward.groups if each.seconds} >= {"wide1"}
    assert records["train_forward of stage 0"].calls == 2 * 4


def test_a_trace_of_the_users_own_goes_on(tmp_path, monkeypatch, caplog):
    def begin(model):
        jax.profiler.start_trace(str(tmp_path / "own"))

    _, records = trained(tmp_path / "run", monkeypatch, prepare=begin)
    jax.profiler.stop_trace()  # it is still running
    assert list((tmp_path / "own").glob("plugins/profile/*/*.xplane.pb"))
    assert records["train_run"].calls == 0
    lines = [each.message for each in caplog.records if "not timed" in each.message]
    assert len(lines) == 1


def test_an_execution_that_would_record_too_much_is_not_traced(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(operation_trace, "MOST_OPERATIONS", 50)
    _, records = trained(tmp_path, monkeypatch)
    assert records["train_run"].calls == 0
    (line,) = (each.message for each in caplog.records if "is not traced" in each.message)
    assert "An execution of 4 steps of 'm' runs about" in line
    assert "Set steps_per_execution=" in line


@pytest.mark.parametrize("value", ["two", "-1", "1.5"])
def test_a_variable_that_is_no_number(tmp_path, monkeypatch, value):
    monkeypatch.setenv("MILLRACE_REPORT_TRACE", value)
    with pytest.raises(OptionError, match=f"MILLRACE_REPORT_TRACE='{value}'.*Set 2"):
        millrace.Strategy(devices=1, report_dir=tmp_path)


def event(name, begin, end, **stats):
    return types.SimpleNamespace(
        name=name, start_ns=begin, duration_ns=end - begin, stats=list(stats.items())
    )


def plane(name, **lines):
    return types.SimpleNamespace(
        name=name,
        lines=[types.SimpleNamespace(name=key, events=each) for key, each in lines.items()],
    )


def test_a_loop_has_the_time_that_its_body_leaves():
    of = {"hlo_module": "jit_run", "program_id": 7, "run_id": 1}
    first = [
        event("while.1", 0, 1000, hlo_op="while.1", **of),
        event("dot.1", 100, 400, hlo_op="dot.1", **of),
        event("end: dot.1", 400, 401),
    ]
    second = [event("dot.2", 300, 900, hlo_op="dot.2", **of)]  # in another thread
    (times,) = times_of([plane("/host:CPU", a=first, b=second)])
    assert (times.module, times.program, times.calls) == ("jit_run", 7, 1)
    nanoseconds = {name: round(each * 1e9) for name, each in times.seconds.items()}
    assert nanoseconds == {"while.1": 200, "dot.1": 300, "dot.2": 600}
    assert round(times.call_seconds * 1e9) == 1000


def test_a_plane_of_a_gpu():
    of = {"hlo_module": "jit_run", "program_id": 7, "run_id": 1}
    lines = {
        "XLA Modules": [event("jit_run(7)", 0, 900, **of)],
        "XLA Ops": [event("fusion.1", 0, 500, **of), event("gemm.1", 500, 900, **of)],
        "Stream #13(Compute)": [event("loop_kernel", 0, 500, hlo_op="fusion.1", **of)],
    }
    (times,) = times_of([plane("/device:GPU:0", **lines)])
    assert {name: round(each * 1e9) for name, each in times.seconds.items()} == {
        "fusion.1": 500,
        "gemm.1": 400,
    }
    del lines["XLA Ops"]
    (times,) = times_of([plane("/device:GPU:0", **lines)])
    assert {name: round(each * 1e9) for name, each in times.seconds.items()} == {"fusion.1": 500}
