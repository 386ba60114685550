"""The refusal of a budget, as a user reads it."""

import re

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import PlanError
from millrace.tools.memory_report import refusals

ROWS = 512


def make_model(strategy, width=128, steps=4):
    with strategy.scope():
        hidden = [keras.layers.Dense(width, "relu", name=f"hidden_{k}") for k in range(3)]
        model = keras.Sequential(
            [keras.Input((16,)), *hidden, keras.layers.Dense(1, name="head")], name="mlp"
        )
    model.compile("sgd", "mse", steps_per_execution=steps)
    return model


def fit(model, rows=ROWS, steps=4, **others):
    x, y = np.ones((steps * rows, 16), "float32"), np.ones((steps * rows, 1), "float32")
    return model.fit(x, y, batch_size=rows, verbose=0, **others)


@pytest.mark.slow
def test_the_message_names_what_holds_the_peak_and_what_would_keep_the_budget(strategy):
    model = make_model(strategy)
    model.set_recomputation_options(budget=0.25)
    with pytest.raises(PlanError) as refusal:
        fit(model)
    message = str(refusal.value)
    budget, least = refusal.value.nbytes, refusal.value.least
    assert f"budget=0.25 is {budget:,} bytes" in message
    assert f"the smallest takes {least:,}. It has " in message
    assert "f32[512,128]" in message
    assert re.search(r"'hidden_\d' \([\d.]+ KB\)", message)
    assert f"Set budget={least} or more, or keep the budget with one of these" in message
    (line,) = [line for line in message.splitlines() if "micro_batch=" in line]
    peak = int(line.split()[0].replace(",", ""))
    assert peak <= budget
    # The change, as it is written.
    changed = make_model(strategy)
    changed.set_recomputation_options(budget=budget)
    (rows,) = map(int, re.findall(r"micro_batch=(\d+)", line))
    changed.set_gradient_accumulation_options(micro_batch=rows)
    fit(changed)
    assert strategy.statistics().budgets[-1].peak_bytes == peak


def test_the_least_peak_can_be_set(strategy, monkeypatch):
    monkeypatch.setattr(refusals, "MOST_SECONDS", 0)  # other changes are compiled in slow tests
    model = make_model(strategy)
    model.set_recomputation_options(budget=1)
    with pytest.raises(PlanError, match=r"smallest takes .*, or use smaller batches") as refusal:
        fit(model)
    model.set_recomputation_options(budget=refusal.value.least)
    fit(model)
    assert strategy.statistics().budgets[-1].peak_bytes == refusal.value.least


@pytest.mark.slow
def test_where_nothing_fits_the_nearest_change_is_named(strategy):
    model = make_model(strategy)
    model.set_recomputation_options(budget=1)
    with pytest.raises(PlanError, match=r"none fits; the nearest, .*, takes "):
        fit(model)


@pytest.mark.slow
def test_a_memory_report_says_the_same(strategy):
    model = make_model(strategy)
    model.set_recomputation_options(budget=0.25)
    with pytest.raises(PlanError) as in_report:
        strategy.memory_report(model, (((ROWS, 16), "float32"), ((ROWS, 1), "float32")))
    with pytest.raises(PlanError) as in_fit:
        fit(model)
    assert str(in_report.value) == str(in_fit.value)


@pytest.mark.slow
def test_a_pipeline_names_the_uses_of_its_fullest_device():
    strategy = millrace.Strategy(devices="cpu:2")
    model = make_model(strategy)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.set_recomputation_options(budget=1000)
    with pytest.raises(PlanError, match=r"smallest takes [\d,]+\. It has .* in flight"):
        fit(model)
