"""Calls before `compile()` are refused, by Keras or with what to do."""

import keras
import numpy as np
import pytest

import millrace
from millrace.errors import NotCompiledError

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


def make_model(strategy):
    with strategy.scope():
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(1)], name="net"
        )


@pytest.mark.parametrize("is_pipelined", [False, True])
@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_a_loop_is_refused_by_keras(method, is_pipelined):
    model = make_model(millrace.Strategy(devices=2))
    if is_pipelined:
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
        model.set_pipeline_stage_assignment([0, 1])
    with pytest.raises(ValueError, match=r"You must call `compile\(\)` before using the model"):
        getattr(model, method)(X, Y)


def test_precompile_and_memory_report(strategy):
    model = make_model(strategy)
    with pytest.raises(NotCompiledError, match=r"Call model\.compile.* before precompile\(\)"):
        model.precompile((X, Y))
    with pytest.raises(NotCompiledError, match=r"Call model\.compile.* before memory_report\(\)"):
        strategy.memory_report(model, (X, Y))


def test_predict_needs_no_compilation(strategy):
    assert make_model(strategy).predict(X, verbose=0).shape == (8, 1)
