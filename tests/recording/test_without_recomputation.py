"""The memory of a training with recomputation, and of the same one without, side by side."""

import keras
import numpy as np
import pytest

import millrace
from millrace.records.run import load

LAYERS = keras.layers


def tower(marks=0, layers=8, width=64):
    inside = []
    for k in range(layers):
        inside.append(LAYERS.Dense(width, "tanh", name=f"dense_{k}"))
        if marks and k % (layers // (marks + 1)) == layers // (marks + 1) - 1 and k < layers - 1:
            inside.append(millrace.layers.RecomputationCheckpoint())
    return keras.Sequential([keras.Input((16,)), *inside, LAYERS.Dense(1, name="last")])


def fit(model):
    model.compile("sgd", "mse")
    model.fit(np.ones((1024, 16), "f4"), np.ones((1024, 1), "f4"), batch_size=1024, verbose=0)


def test_candidates_of_a_budget_are_recorded_as_trials(tmp_path):
    with millrace.Strategy(devices=1, report_dir=tmp_path).scope():
        model = tower()
    model.set_recomputation_options(budget=0.9)
    fit(model)
    run = load(tmp_path)
    profiles = [each for each in run.memory_profiles if each.program == "train_run"]
    (real,) = [each for each in profiles if not each.is_trial]
    trials = [each for each in profiles if each.is_trial]
    plain = [each for each in trials if not each.recomputation]
    assert len(plain) == 1
    assert real.recomputation.startswith("choice ")
    assert "dense_" in real.recomputation
    assert real.requirement <= 0.9 * plain[0].requirement
    assert real.peak.bytes < plain[0].peak.bytes
    assert run.memory["train"] == real
    assert any(segment.kind == "recomputation" for segment in real.segments)


def test_a_budget_that_needs_nothing_leaves_no_trial(tmp_path):
    with millrace.Strategy(devices=1, report_dir=tmp_path).scope():
        model = tower()
    model.set_recomputation_options(budget="1GB")
    fit(model)
    profiles = load(tmp_path).memory_profiles
    assert profiles
    assert not any(each.is_trial or each.recomputation for each in profiles)


def profiles_of(path, program):
    return [each for each in load(path).memory_profiles if each.program == program]


@pytest.mark.slow
def test_boundaries_beside_the_same_training_without_if_asked(tmp_path):
    with millrace.Strategy(devices=1).scope():
        model = tower(marks=3)
    model.set_recomputation_options(mode="auto")
    report = millrace.callbacks.Report(tmp_path, without_recomputation=True)
    model.compile("sgd", "mse", steps_per_execution=2)
    x, y = np.ones((2048, 16), "f4"), np.ones((2048, 1), "f4")
    model.fit(x, y, batch_size=1024, verbose=0, callbacks=[report])
    after = model.get_weights()
    real, plain = profiles_of(tmp_path, "train_run")
    assert (real.is_trial, plain.is_trial) == (False, True)
    assert real.recomputation.startswith("between boundaries: dense_0")
    assert plain.recomputation == ""
    assert real.peak.bytes < 0.95 * plain.peak.bytes
    batches = [
        area.curve[0] for each in (real, plain) for area in each.areas if "batch" in area.role
    ]
    assert len(set(batches)) == 1
    assert load(tmp_path).memory["train"] == real
    for mine, now in zip(after, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, now)


@pytest.mark.parametrize("mode", ["none", "auto"])
def test_nothing_more_is_compiled_by_accident(tmp_path, mode):
    with millrace.Strategy(devices=1).scope():
        model = tower(marks=3 if mode == "auto" else 0)
    model.set_recomputation_options(mode=mode)
    asked = mode == "none"  # where nothing is recomputed there is nothing to compare
    model.compile("sgd", "mse")
    report = millrace.callbacks.Report(tmp_path, without_recomputation=asked)
    model.fit(np.ones((64, 16), "f4"), np.ones((64, 1), "f4"), verbose=0, callbacks=[report])
    profiles = load(tmp_path).memory_profiles
    assert profiles
    assert not any(each.is_trial for each in profiles)


@pytest.mark.slow
def test_stages_of_a_pipeline_beside_the_same_without(tmp_path):
    with millrace.Strategy(devices=2).scope():
        model = tower()
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.set_pipeline_stage_assignment([0] * 4 + [1] * 5)
    model.set_recomputation_options(mode="auto")
    report = millrace.callbacks.Report(tmp_path, without_recomputation=True)
    model.compile("sgd", "mse", steps_per_execution=4)
    x, y = np.ones((1024, 16), "f4"), np.ones((1024, 1), "f4")
    model.fit(x, y, batch_size=256, verbose=0, callbacks=[report])
    forward = profiles_of(tmp_path, "train_forward of stage 0")
    real, plain = (next(p for p in forward if p.is_trial is trial) for trial in (False, True))
    assert real.peak.bytes < plain.peak.bytes  # it keeps no residuals
    backward = profiles_of(tmp_path, "train_backward of stage 0")
    real, plain = (next(p for p in backward if p.is_trial is trial) for trial in (False, True))
    assert real.recomputation.startswith("whole stages")
    assert plain.recomputation == ""


@pytest.mark.slow
def test_a_failure_of_the_comparison_is_logged(tmp_path, caplog, monkeypatch):
    def fails(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr("millrace.recording.without_recomputation.dry_run_of", fails)
    with millrace.Strategy(devices=1).scope():
        model = tower(marks=3)
    model.set_recomputation_options(mode="auto")
    model.compile("sgd", "mse")
    report = millrace.callbacks.Report(tmp_path, without_recomputation=True)
    model.fit(np.ones((64, 16), "f4"), np.ones((64, 1), "f4"), verbose=0, callbacks=[report])
    assert "without recomputation is not recorded: no memory" in caplog.text
