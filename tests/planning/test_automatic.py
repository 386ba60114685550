"""`Strategy(memory=...)`: fit plans before its first step, and changes nothing where all fits."""

import logging

import keras
import numpy as np
import plan_cases as cases
import pytest

import millrace
from millrace.errors import OptionError, PlanError

ROWS = 64


def peak_of(model):
    """What the plain training of a model takes, by a strategy without a memory."""
    strategy = millrace.Strategy(devices=1)
    x, y = cases.data(model, ROWS)
    return strategy.memory_report(cases.attached(strategy, cases.mlp), (x, y)).peak


def options_of(model):
    return model._millrace.setup.options


@pytest.mark.slow
def test_fit_plans_where_plain_training_does_not_fit(caplog, capsys):
    caplog.set_level(logging.INFO, "millrace")
    peak = peak_of(cases.mlp())
    strategy = millrace.Strategy(devices=1, memory=int(0.75 * peak))
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, 3 * ROWS + 8)
    expected = cases.losses_of_keras(cases.mlp, x, y, ROWS, epochs=2)["loss"]
    keras.utils.set_random_seed(1)
    losses = model.fit(x, y, batch_size=ROWS, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=cases.SAME)
    (line,) = [each.message for each in caplog.records if each.message.startswith("planned")]
    assert "'mlp' needs" in line
    assert "model.set_" in line
    assert line in capsys.readouterr().err.splitlines()  # which is no terminal
    assert strategy.memory_report(model, (x[:ROWS], y[:ROWS])).peak <= 0.75 * peak
    planned = options_of(model)
    model.fit(x, y, batch_size=ROWS, verbose=0)
    assert options_of(model) == planned  # not planned again


def test_nothing_changes_where_all_fits(caplog, tmp_path):
    caplog.set_level(logging.INFO, "millrace")
    strategy = millrace.Strategy(devices=1, memory="1GB", report_dir=tmp_path)
    model = cases.attached(strategy, cases.mlp)
    before = options_of(model)
    x, y = cases.data(model, 2 * ROWS)
    model.fit(x, y, batch_size=ROWS, verbose=0)
    assert options_of(model) == before
    assert not [each for each in caplog.records if "planned" in each.message]
    assert {each.cause for each in strategy.compile_log} == {"first compilation"}
    (loop,) = millrace.records.load(tmp_path).loops  # the planning is part of it
    assert loop.seconds >= loop.compile_seconds > loop.planning_seconds > 0


def test_options_of_the_user_stay():
    strategy = millrace.Strategy(devices=1, memory=1000)
    model = cases.attached(strategy, cases.mlp)
    model.set_recomputation_options(mode="auto")
    before = options_of(model)
    x, y = cases.data(model, ROWS)
    model.fit(x, y, batch_size=ROWS, verbose=0)
    assert options_of(model) == before


@pytest.mark.slow
def test_too_little_memory_is_said_before_the_first_step():
    strategy = millrace.Strategy(devices=1, memory=1000)
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, ROWS)
    weights = model.get_weights()
    with pytest.raises(PlanError, match=r"the smallest takes [0-9,]+ bytes.*smaller batch_size"):
        model.fit(x, y, batch_size=ROWS, verbose=0)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert strategy.statistics().executions == 0


@pytest.mark.slow
def test_larger_batches_are_planned_again():
    peak = peak_of(cases.mlp())
    strategy = millrace.Strategy(devices=1, memory=peak)
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, 8 * ROWS)
    model.fit(x[:ROWS], y[:ROWS], batch_size=ROWS, verbose=0)
    model.fit(x, y, batch_size=4 * ROWS, verbose=0)
    report = strategy.memory_report(model, (x[: 4 * ROWS], y[: 4 * ROWS]))
    assert report.peak <= peak


def test_a_generator_is_trained_and_not_planned(caplog):
    strategy = millrace.Strategy(devices=1, memory="1GB")
    model = cases.attached(strategy, cases.mlp)
    x, y = cases.data(model, ROWS)

    def batches():
        yield x, y

    model.fit(batches(), shuffle=False, verbose=0)
    assert any("is not planned" in each.message for each in caplog.records)


def test_auto_needs_devices_that_report_their_memory():
    with pytest.raises(OptionError, match=r"memory='auto'.*reports no memory"):
        millrace.Strategy(devices=1, memory="auto")
    with pytest.raises(OptionError, match=r"memory is the bytes of one device"):
        millrace.Strategy(devices=1, memory="lots")


def test_plan_takes_the_memory_of_the_strategy():
    strategy = millrace.Strategy(devices=1, memory="1GB")
    model = cases.attached(strategy, cases.one_layer)
    x, y = cases.data(model, ROWS)
    assert strategy.plan(model, (x, y)).memory == 10**9
