"""Budgets of recomputation, which are made with the peaks of the target's own compiler."""

import keras
import pytest
from keras import layers
from target_programs import Target

import millrace

# A TPU keeps what is smaller in its vector memory of 128 MiB, which no budget counts.
ROWS, UNITS, DEPTH = 1 << 15, 512, 6
BATCH = (((ROWS, UNITS), "float32"), ((ROWS, 1), "float32"))


def build(target, with_boundaries=False):
    with target.strategy.scope():
        x = inputs = keras.Input((UNITS,))
        for k in range(DEPTH):
            x = layers.Dense(UNITS, "tanh")(x)
            if with_boundaries and k % 3 == 2:
                x = millrace.layers.RecomputationCheckpoint()(x)
        model = keras.Model(inputs, layers.Dense(1)(x))
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
    plain = plain_peak(kind)
    assert programs["train_run"].peak <= share * plain


def test_a_budget_in_bytes(kind):
    plain = plain_peak(kind)
    target = Target(kind)
    model = build(target)
    model.set_recomputation_options(budget=int(0.6 * plain))
    assert target.precompile(model, BATCH)["train_run"].peak <= 0.6 * plain


def test_boundaries(kind):
    target = Target(kind)
    model = build(target, with_boundaries=True)
    model.set_recomputation_options()
    peak = target.precompile(model, BATCH)["train_run"].peak
    assert peak < 0.75 * plain_peak(kind)
