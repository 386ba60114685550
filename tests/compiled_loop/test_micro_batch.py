"""The most rows that fit: the search, the memory of parts, and the choice of `"auto"`."""

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.run.compiled_loop import micro_batch
from millrace.run.compiled_loop.budget import OverBudgetError
from millrace.run.compiled_loop.micro_batch import first_that_fits

X = np.random.default_rng(0).normal(size=(2048, 16)).astype("float32")
Y = X[:, :2]


def wide(strategy, **compiled):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((16,)), *(layers.Dense(64, "tanh") for _ in range(8)), layers.Dense(2)]
        )
    model.compile("sgd", "mse", **compiled)
    return model


def fit(model, rows=1024):
    return model.fit(X, Y, batch_size=rows, verbose=0, shuffle=False).history["loss"]


@pytest.fixture
def strategy():
    return millrace.Strategy(devices=1, cache_dir=None)


@pytest.mark.parametrize("limit", range(25))
@pytest.mark.parametrize("rows", [24, 31, 1])
def test_the_search_finds_the_most_rows(rows, limit):
    sizes = sorted({-(-rows // parts) for parts in range(1, rows + 1)}, reverse=True)
    tried = []

    def fits(number):
        tried.append(number)
        return sizes[number] <= limit

    expected = next((k for k, size in enumerate(sizes) if size <= limit), None)
    assert first_that_fits(sizes, fits) == expected
    assert len(tried) <= 2 * rows.bit_length() + 2


def peak(strategy, rows, **compiled):
    model = wide(strategy, **compiled)
    model.set_gradient_accumulation_options(micro_batch=rows)
    return strategy.memory_report(model, (X, Y)).devices[0]


@pytest.mark.slow
def test_the_memory_of_activations_falls_with_the_rows(strategy):
    temporaries = [peak(strategy, rows).stages[0].temporaries for rows in (2048, 1024, 512)]
    gradients = 4 * sum(
        int(np.prod(variable.shape)) for variable in wide(strategy).trainable_variables
    )
    activations = [each - gradients for each in temporaries]
    assert activations[1] < 0.6 * activations[0]
    assert activations[2] < 0.35 * activations[0]


@pytest.mark.slow
def test_unrolled_convolutions_keep_the_memory_of_a_part(strategy):
    def temporaries(rows):
        with strategy.scope():
            convs = [layers.Conv2D(8, 3, activation="relu", padding="same") for _ in range(4)]
            model = keras.Sequential([keras.Input((16, 16, 3)), *convs])
        model.compile("sgd", "mse")
        model.set_gradient_accumulation_options(micro_batch=rows)
        batch = np.ones((64, 16, 16, 3)), np.ones((64, 16, 16, 8))
        return strategy.memory_report(model, batch).devices[0].stages[0].temporaries

    whole = temporaries(64)
    assert temporaries(32) < 0.65 * whole
    assert temporaries(16) < 0.4 * whole


def test_without_a_limit_auto_takes_the_whole_batch(strategy):
    model = wide(strategy)
    model.set_gradient_accumulation_options(micro_batch="auto")
    losses = fit(model)
    assert losses == pytest.approx(fit(wide(millrace.Strategy(devices=1))), rel=1e-6)
    assert chosen(strategy) == []


@pytest.mark.slow
def test_auto_keeps_to_the_memory_of_the_strategy(strategy):
    expected = fit(wide(strategy, steps_per_execution=2))
    plain = strategy.compile_log[-1].peak_bytes
    for share, rows in ((0.8, "at once"), (0.5, "at a time")):  # blocks get shorter first
        small = millrace.Strategy(devices=1, memory=int(share * plain))
        model = wide(small, steps_per_execution=2)
        model.set_gradient_accumulation_options(micro_batch="auto")
        assert fit(model) == pytest.approx(expected, rel=1e-6)
        (choice,) = small.statistics().budgets
        assert rows in choice.choice
        assert choice.peak_bytes <= share * plain


def chosen(strategy):
    return [choice.choice for choice in strategy.statistics().budgets]


@pytest.mark.slow
def test_auto_takes_the_most_rows_that_the_device_holds(strategy, monkeypatch):
    peaks = {}
    for rows in (1024, 512, 342):
        model = wide(strategy)
        model.set_infeed_queue_options(max_block_bytes=2**24)  # which stays
        model.set_gradient_accumulation_options(micro_batch=rows)
        report = strategy.memory_report(model, (X[:1024], Y[:1024]))
        peaks[rows] = report.peak
    assert peaks[1024] > peaks[512] > peaks[342]
    monkeypatch.setattr(micro_batch, "memory_limit", lambda device: peaks[512])
    model = wide(strategy)
    model.set_infeed_queue_options(max_block_bytes=2**24)
    model.set_gradient_accumulation_options(micro_batch="auto")
    losses = fit(model)
    assert losses == pytest.approx(fit(wide(millrace.Strategy(devices=1))), rel=1e-6)
    assert chosen(strategy)[-1] == "a step computes its 1024 rows 512 at a time"


@pytest.mark.slow
def test_auto_with_a_budget_divides_before_it_recomputes():
    strategy = millrace.Strategy(devices=1, cache_dir=None, on_recompile="error")
    model = wide(strategy)
    whole = strategy.memory_report(model, (X[:1024], Y[:1024])).peak
    model = wide(strategy)
    model.set_gradient_accumulation_options(micro_batch="auto")
    model.set_recomputation_options(budget=int(0.6 * whole))
    fit(model)
    texts = chosen(strategy)
    assert "at a time" in texts[-2]
    assert texts[-1] == "nothing is run again"
    model.set_recomputation_options(budget=1000)
    with pytest.raises(OverBudgetError, match="budget=1000"):
        fit(model)


@pytest.mark.slow
def test_a_budget_recomputes_the_parts(strategy):
    model = wide(strategy)
    model.set_gradient_accumulation_options(micro_batch=500)
    whole = strategy.memory_report(model, (X[:1024], Y[:1024])).peak
    model.set_recomputation_options(budget=int(0.9 * whole))
    assert fit(model) == pytest.approx(fit(wide(millrace.Strategy(devices=1))), rel=1e-6)
    assert "run again" in chosen(strategy)[-1]


def test_other_rows_are_the_cause_of_a_recompilation(strategy):
    model = wide(strategy)
    model.set_gradient_accumulation_options(micro_batch=512)
    fit(model)
    model.set_gradient_accumulation_options(micro_batch=256)
    fit(model)
    assert "micro_batch: 512 -> 256" in strategy.compile_log[-1].cause
