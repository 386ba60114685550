"""set_recomputation_options: what it takes and refuses, and what it says of boundaries."""

import logging

import keras
import numpy as np
import pytest
from keras import layers

import millrace
from millrace.base.options import Recomputation, RecomputationMode
from millrace.layers import RecomputationCheckpoint

X = np.ones((16, 4), "float32")


def marked(strategy):
    with strategy.scope():
        inputs = keras.Input((4,))
        hidden = RecomputationCheckpoint()(layers.Dense(4, "tanh")(inputs))
        model = keras.Model(inputs, layers.Dense(4)(layers.Dense(4, "tanh")(hidden)))
    model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=4)
    return model


def pipelined(**options):
    model = marked(millrace.Strategy(devices=2))
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4, **options)
    return model


@pytest.mark.parametrize(
    ("given", "budget"),
    [
        ("1.5GB", 1_500_000_000),
        ("800 MiB", 800 * 2**20),
        ("2e3kb", 2_000_000),
        ("4096", 4096),
        (123456, 123456),
        (1e9, 1_000_000_000),
        (0.5, 0.5),
        (1.0, 1.0),
    ],
)
def test_budgets(strategy, given, budget):
    model = marked(strategy)
    model.set_recomputation_options(budget=given)
    found = model._millrace.setup.options.recomputation.budget
    assert (found, type(found)) == (budget, type(budget))


@pytest.mark.parametrize("given", ["much", "1.5.2GB", "", 0, -1, 0.0, 1.5, True, [1], float("inf")])
def test_what_is_no_budget_is_refused(strategy, given):
    with pytest.raises(millrace.errors.OptionError, match="budget must be bytes"):
        marked(strategy).set_recomputation_options(budget=given)


def test_unknown_options_and_modes_are_refused(strategy):
    model = marked(strategy)
    with pytest.raises(millrace.errors.OptionError, match="Did you mean budget"):
        model.set_recomputation_options(budgets=1)
    with pytest.raises(millrace.errors.OptionError, match="'auto'"):
        model.set_recomputation_options(mode="sometimes")
    with pytest.raises(millrace.errors.OptionError, match="Set one of them"):
        model.set_recomputation_options(mode="recompute_then_backpropagate", budget=0.5)


def test_a_pipeline_sets_the_same_mode():
    model = pipelined(pipeline_schedule="grouped", recomputation_mode="Auto")
    assert model._millrace.setup.options.recomputation == Recomputation(mode=RecomputationMode.AUTO)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    assert model._millrace.setup.options.recomputation.mode is RecomputationMode.AUTO
    model.set_recomputation_options(mode=None)
    assert model._millrace.setup.options.recomputation.mode is RecomputationMode.AUTO
    model.set_recomputation_options(mode="none")
    assert model._millrace.setup.options.recomputation == Recomputation()


def test_of_a_mode_and_a_budget_the_last_is_in_force(strategy):
    def options(**arguments):
        model.set_recomputation_options(**arguments)
        return model._millrace.setup.options.recomputation

    model = marked(strategy)
    interleaved = RecomputationMode.RECOMPUTE_AND_BACKPROPAGATE_INTERLEAVED
    budget = Recomputation(mode=RecomputationMode.AUTO, budget=0.5)
    assert options(mode=interleaved.value) == Recomputation(mode=interleaved)
    assert options(budget=0.5) == budget
    assert options(mode=None) == budget
    assert options(mode=interleaved.value) == Recomputation(mode=interleaved)
    assert options(mode=None, budget=0.5) == budget
    assert options() == Recomputation(mode=RecomputationMode.AUTO)
    options(budget=0.5)
    model.set_pipelining_options(recomputation_mode="none")
    assert model._millrace.setup.options.recomputation == Recomputation()


def test_options_are_saved_with_the_model(strategy, tmp_path):
    model = marked(strategy)
    model.set_recomputation_options(budget="1GB")
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert (
        loaded._millrace.setup.options.recomputation == model._millrace.setup.options.recomputation
    )


MODES = ["auto", "recompute_then_backpropagate", "recompute_and_backpropagate_interleaved"]
ILLEGAL = {("sequential", MODES[1]), ("1f1b", MODES[2])}


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["grouped", "1f1b", "sequential"])
def test_modes_and_schedules(schedule):
    losses = set()
    for mode in ["none", *MODES]:
        model = pipelined(pipeline_schedule=schedule, recomputation_mode=mode)
        keras.utils.set_random_seed(0)
        for weights in model.trainable_variables:
            weights.assign(np.full(weights.shape, 0.1))
        if (schedule, mode) in ILLEGAL:
            with pytest.raises(millrace.errors.PlanError, match=f"{mode}.*{schedule}"):
                model.fit(X, X, batch_size=4, verbose=0)
        else:
            losses.update(model.fit(X, X, batch_size=4, verbose=0).history["loss"])
    assert len(losses) == 1


def said(model, caplog):
    caplog.clear()
    with caplog.at_level(logging.INFO, "millrace"):
        for _ in range(2):
            model.fit(X, X, batch_size=4, verbose=0)
            model.evaluate(X, X, batch_size=4, verbose=0)
    return [m for r in caplog.records if "has no effect" in (m := r.getMessage())]


@pytest.mark.slow
def test_boundaries_that_cannot_act_say_so_once(strategy, caplog):
    model = marked(strategy)
    (message,) = said(model, caplog)
    assert "set_recomputation_options()" in message
    model.set_recomputation_options(mode="recompute_then_backpropagate")
    assert len(said(model, caplog)) == 1
    model.set_recomputation_options()
    assert not said(model, caplog)
    (message,) = said(pipelined(recomputation_mode="auto"), caplog)
    assert "interleaved" in message
