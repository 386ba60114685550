"""What a recomputation budget has chosen, to be read after fit."""

import keras
import numpy as np
import pytest
from keras import layers


def fit(strategy, budget):
    with strategy.scope():
        inner = [layers.Dense(32, "tanh") for _ in range(8)]
        model = keras.Sequential([keras.Input((8,)), *inner, layers.Dense(1)], name="net")
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_recomputation_options(budget=budget)
    x = np.ones((4096, 8), "float32")
    model.fit(x, x[:, :1], batch_size=2048, verbose=0)
    return strategy.statistics().budgets


def test_the_choice_is_in_the_statistics(strategy):
    (choice,) = fit(strategy, 0.9)
    assert (choice.model, choice.budget) == ("net", 0.9)
    assert choice.peak_bytes in {each.peak_bytes for each in strategy.compile_log}
    assert 0 < choice.extra_flops < 1
    assert "run again" in choice.choice
    assert str(choice) == f"keeps to {choice.peak_bytes:,} bytes: {choice.choice}"


def test_a_budget_that_changes_nothing_says_so(strategy):
    (choice,) = fit(strategy, "1GB")
    assert (choice.budget, choice.extra_flops) == (10**9, 0.0)
    assert choice.choice == "nothing is run again"


def test_no_budget_no_choice(strategy):
    assert strategy.statistics().budgets == ()


@pytest.mark.parametrize("budget", ["lots", 0, -1, 1.5, True])
def test_a_budget_that_is_none_is_refused_at_once(strategy, budget):
    with pytest.raises(ValueError, match=r"budget must be bytes, a text such as '1\.5GB'"):
        fit(strategy, budget)
