"""The memory of a training with recomputation, and of the same one without, side by side."""

import keras
import numpy as np

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
