"""Budgets of recomputation, which are made with the peaks of the target's own compiler."""

import keras
import pytest
from keras import layers
from target_programs import Target

import millrace

STEPS, FEATURES, ROWS, UNITS = 512, 32, 64, 128
BATCH = (((ROWS, STEPS, FEATURES), "float32"), ((ROWS, 1), "float32"))


def build(target, slices=0):
    """Returns a recurrent model: a TPU does not keep so long a sequence in its vector memory.

    What it keeps there is not memory that a program takes, and no budget can have less of it.
    """
    with target.strategy.scope():
        x = inputs = keras.Input((STEPS, FEATURES))
        cell, state = layers.LSTM(UNITS, use_cudnn=False, return_state=True), None
        for k in range(max(slices, 1)):
            part = x if not slices else x[:, k * STEPS // slices : (k + 1) * STEPS // slices]
            result, *state = cell(part, initial_state=state)
            if slices:
                state = millrace.layers.RecomputationCheckpoint()(state)
        model = keras.Model(inputs, layers.Dense(1)(result))
    model.compile("sgd", "mse", steps_per_execution=2)
    return model


def plain_peak(kind):
    target = Target(kind)
    return target.precompile(build(target), BATCH)["train_run"].peak


@pytest.mark.parametrize("share", [0.6, pytest.param(0.4, marks=pytest.mark.quick)])
def test_a_budget_is_kept(kind, share):
    target = Target(kind)
    model = build(target)
    model.set_recomputation_options(budget=share)
    programs = target.precompile(model, BATCH)
    assert programs["train_run"].peak <= share * plain_peak(kind)


def test_a_budget_in_bytes(kind):
    plain = plain_peak(kind)
    target = Target(kind)
    model = build(target)
    model.set_recomputation_options(budget=int(0.6 * plain))
    assert target.precompile(model, BATCH)["train_run"].peak <= 0.6 * plain


def test_boundaries(kind):
    target = Target(kind)
    model = build(target, slices=4)
    model.set_recomputation_options()
    assert target.precompile(model, BATCH)["train_run"].peak < 0.6 * plain_peak(kind)
