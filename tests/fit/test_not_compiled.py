"""Calls before `compile()`: one error for all, in Keras's words and with what to do."""

import keras
import numpy as np
import pytest

from millrace.errors import ModelError, NotCompiledError

X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


def make_model(strategy):
    with strategy.scope():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="net")


@pytest.mark.parametrize("loop", ["fit", "evaluate"])
def test_a_loop(strategy, loop):
    model = make_model(strategy)
    with pytest.raises(
        NotCompiledError,
        match=rf"You must call `compile\(\)` before using the model.*{loop}\(\) needs.*"
        r"Call model\.compile\(optimizer, loss\)",
    ):
        getattr(model, loop)(X, Y)
    assert issubclass(NotCompiledError, ValueError)  # which Keras raises
    assert issubclass(NotCompiledError, ModelError)


@pytest.mark.parametrize("method", ["train_on_batch", "test_on_batch"])
def test_a_single_batch_is_refused_by_keras(strategy, method):
    with pytest.raises(ValueError, match=r"You must call `compile\(\)` before using the model"):
        getattr(make_model(strategy), method)(X, Y)


def test_precompile_and_memory_report(strategy):
    model = make_model(strategy)
    with pytest.raises(NotCompiledError, match=r"Call model\.compile.* before precompile\(\)"):
        model.precompile((X, Y))
    with pytest.raises(NotCompiledError, match=r"Call model\.compile.* before memory_report\(\)"):
        strategy.memory_report(model, (X, Y))


def test_a_pipeline(strategy):
    model = make_model(strategy)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.set_pipeline_stage_assignment([0])
    with pytest.raises(NotCompiledError, match="'net' has no optimizer and no loss"):
        model.fit(X, Y)


def test_predict_needs_no_compilation(strategy):
    assert make_model(strategy).predict(X, verbose=0).shape == (8, 1)
