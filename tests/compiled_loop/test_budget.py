"""The choice of recomputation that stays within a budget, from predictions and through fit."""

import logging

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.compiled_loop.budget import find_choice

pytestmark = pytest.mark.shipped_compiler

PREDICTED = [900, 700, 500, 400, 300, 200]
COMPILED = [1100, 890, 690, 590, 480, 390]


def found(limit=None, share=None, compiled=COMPILED, predicted=PREDICTED):
    measured = []

    def measure(number):
        measured.append(number)
        return compiled[number]

    return find_choice(predicted, limit, share, measure), measured


@pytest.mark.parametrize("limit", [390, 391, 480, 589, 590, 600, 700, 900, 1099, 1100, 5000])
def test_the_first_choice_that_fits_is_taken(limit):
    number, measured = found(limit)
    assert number == next(k for k, peak in enumerate(COMPILED) if peak <= limit)
    assert len(set(measured)) == len(measured) <= 4


def test_a_share_is_of_what_the_first_choice_takes():
    assert found(share=1.0)[0] == 0
    assert found(share=0.55)[0] == 3


def test_predictions_only_say_where_to_look():
    wrong = [900, 899, 898, 897, 896, 895]
    for limit in (400, 600, 800):
        assert found(limit, predicted=wrong)[0] == found(limit)[0]


@pytest.mark.parametrize("predicted", [range(1012, 1000, -1), range(60000, 0, -5000)], ids=str)
def test_the_first_of_many_choices_is_found_however_wrong_predictions_are(predicted):
    compiled = range(1200, 0, -100)
    for number, limit in enumerate(compiled):
        assert found(limit, compiled=compiled, predicted=predicted)[0] == number


def test_more_budget_never_takes_more_flops_or_less_memory():
    chosen = [found(limit)[0] for limit in range(390, 1200, 10)]
    assert chosen == sorted(chosen, reverse=True)


def test_a_budget_below_the_least_is_refused_with_the_least():
    with pytest.raises(millrace.errors.PlanError, match=r"at least 390.*Set budget=390"):
        found(389)
    with pytest.raises(millrace.errors.PlanError, match=r"at least 5.*Set budget=5"):
        find_choice([0], 3, None, lambda number: 5)


def test_the_least_may_be_a_choice_before_the_last():
    number, _ = found(385, compiled=[1100, 890, 690, 590, 380, 390])
    assert number == 4


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
    assert "segments" in caplog.text
    assert "of the FLOPs" in caplog.text or "x the FLOPs" in caplog.text


def test_a_budget_that_no_recomputation_keeps_to_is_refused():
    strategy = millrace.Strategy(devices=1)
    model = deep(strategy, 4)
    model.set_recomputation_options(budget=1000)
    with pytest.raises(millrace.errors.PlanError, match="takes at least"):
        model.fit(X, X, batch_size=512, verbose=0)
    model.set_recomputation_options(mode="none")
    model.fit(X, X, batch_size=512, verbose=0)  # the model is as it was


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
