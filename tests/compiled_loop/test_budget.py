"""Training within a budget, through fit."""

import logging

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.tools.memory_report import refusals


def deep(strategy, depth=12):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,))])
        for _ in range(depth):
            model.add(layers.Dense(64, "tanh"))
            model.add(layers.Dropout(0.1))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


X = np.random.default_rng(0).normal(size=(1024, 64)).astype("float32")


def trained(budget):
    """Returns the peak of the program that ran, and the losses."""
    strategy = millrace.Strategy(devices=1)
    model = deep(strategy)
    if budget is not None:
        model.set_recomputation_options(budget=budget)
    history = model.fit(X, X, batch_size=512, epochs=2, shuffle=False, verbose=0)
    report = strategy.memory_report(model, (X[:512], X[:512]))
    return report.devices[0].peak, history.history["loss"]


@pytest.mark.slow
@pytest.mark.shipped_compiler
def test_training_keeps_to_its_budget_and_to_its_numbers(caplog):
    plain, losses = trained(None)
    peaks = []
    with caplog.at_level(logging.INFO, "millrace"):
        for share in (1.0, 0.7):
            peak, found_losses = trained(share)
            assert peak <= share * plain
            np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
            peaks.append(peak)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] == plain
    assert "x the FLOPs" in caplog.text


@pytest.mark.slow
def test_a_budget_that_no_recomputation_keeps_to_is_refused():
    strategy = millrace.Strategy(devices=1)
    model = deep(strategy, 4)
    model.set_recomputation_options(budget=1000)
    with pytest.raises(millrace.errors.PlanError, match="the smallest takes"):
        model.fit(X, X, batch_size=512, verbose=0)
    model.set_recomputation_options(mode="none")
    model.fit(X, X, batch_size=512, verbose=0)  # the model is as it was


def wide_data(budget, accumulation=1, rows=1024, **feed):
    """Returns the weights of a model whose batches take more than its activations."""
    keras.utils.set_random_seed(0)
    strategy = millrace.Strategy(devices=1, on_recompile="log" if rows % 64 else "error")
    with strategy.scope():
        model = keras.Sequential([keras.Input((512,)), layers.Dense(8), layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    if budget is not None:
        model.set_recomputation_options(budget=budget)
    model.set_infeed_queue_options(**feed)
    x = np.random.default_rng(0).normal(size=(rows, 512)).astype("float32")
    model.fit(x, x[:, :1], batch_size=64, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), strategy.statistics().budgets


@pytest.mark.parametrize(
    ("accumulation", "rows"),
    [(1, 1024), pytest.param(4, 1056, marks=pytest.mark.slow)],  # a smaller batch ends an update
)
def test_a_budget_shortens_blocks_whose_length_nobody_chose(accumulation, rows, caplog):
    plain, _ = wide_data(None, accumulation, rows)
    with caplog.at_level(logging.INFO, "millrace"):
        weights, choices = wide_data(0.5, accumulation, rows)
    assert f"takes {accumulation} of its batches to the device at a time" in caplog.text
    assert all(choice.peak_bytes <= choice.budget for choice in choices[1:])
    for before, now in zip(plain, weights, strict=True):
        np.testing.assert_array_equal(now, before)


def test_a_budget_leaves_the_users_blocks_alone_and_the_least_block_may_not_fit(monkeypatch):
    monkeypatch.setattr(refusals, "MOST_SECONDS", 0)  # in which other changes would be compiled
    with pytest.raises(millrace.errors.PlanError, match=r"budget=0.5 is [\d,]+ bytes"):
        wide_data(0.5, max_block_bytes=2**22)
    with pytest.raises(millrace.errors.PlanError, match=r"budget=10000 is 10,000 bytes"):
        wide_data(10_000)


@pytest.mark.slow
def test_the_devices_of_a_pipeline_keep_to_a_budget():
    found = {}
    for budget in (None, 0.75):
        strategy = millrace.Strategy(devices=2)
        model = deep(strategy)
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
        model.set_pipeline_stage_assignment("auto", num_stages=2)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4, pipeline_schedule="gpipe"
        )
        if budget is not None:
            model.set_recomputation_options(budget=budget)
        report = strategy.memory_report(model, (X[:256], X[:256]))
        history = model.fit(X, X, batch_size=256, epochs=2, shuffle=False, verbose=0)
        found[budget] = report.peak, history.history["loss"]
    (plain, losses), (peak, found_losses) = found[None], found[0.75]
    assert peak <= 0.75 * plain
    np.testing.assert_allclose(found_losses, losses, rtol=1e-6)
