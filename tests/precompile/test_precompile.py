"""`model.precompile`: what it compiles is what fit, evaluate and predict then run."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest

import millrace
from case_marks import with_marks
from millrace.errors import ModelError, OptionError, PlanError

layers = keras.layers
SCRIPT = pathlib.Path(__file__).parent / "ahead_of_time.py"
SPEC = ((4, 8), "float32"), ((4, 1), "float32")


def mlp(steps=4, seeds=False):
    inside = [layers.Dropout(0.5, seed=1)] if seeds else []
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, "relu"), *inside, layers.Dense(1)], name="mlp"
    )
    model.compile("adam", "mse", metrics=["mae"], steps_per_execution=steps)
    return model


def data(count, rows=4):
    random = np.random.default_rng(0)
    return random.random((count * rows, 8), np.float32), random.random(
        (count * rows, 1), np.float32
    )


def executables(strategy):
    return [record for record in strategy.compile_log if record.is_executable]


def run_all(model, count=40, few=3):
    """Runs all loops on data of several lengths."""
    x, y = data(count)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, validation_data=data(few))
    model.evaluate(x, y, batch_size=4, verbose=0)
    model.predict(data(few)[0], batch_size=4, verbose=0)
    model.predict(x, batch_size=4, verbose=0)


def accumulated(model):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)


def streamed(model):
    model.set_infeed_queue_options(max_resident_bytes=0)


def recomputed(model):
    model.set_recomputation_options(budget=1.0)


def plain(model):
    pass


@pytest.mark.parametrize(
    ("choose", "steps_per_epoch"),
    with_marks(
        itertools.product((plain, accumulated, streamed, recomputed), (None, 40)),
        slow=[(streamed, None)],
    ),
)
def test_all_loops_find_what_they_run(strategy, choose, steps_per_epoch):
    model = strategy.attach(mlp())
    choose(model)
    assert model.precompile(SPEC, steps_per_epoch=steps_per_epoch) is None
    made = executables(strategy)
    assert {record.program for record in made} == {"train_run", "test_run", "predict_run"}
    assert strategy.statistics().executions == 0
    run_all(model)
    assert executables(strategy) == made


def test_two_replicas():
    strategy = millrace.Strategy(2)
    model = strategy.attach(mlp(8))
    accumulated(model)
    model.precompile(SPEC)
    made = executables(strategy)
    run_all(model, few=4)
    assert executables(strategy) == made


def pipeline(strategy, steps=8):
    inputs = keras.Input((8,))
    with strategy.scope():
        with millrace.PipelineStage(0):
            hidden = layers.Dense(6, "relu")(inputs)
        with millrace.PipelineStage(1):
            outputs = layers.Dense(1)(hidden)
        model = keras.Model(inputs, outputs)
    model.compile("adam", "mse", steps_per_execution=steps)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    return model


def test_all_stages_of_a_pipeline():
    strategy = millrace.Strategy(2)
    model = pipeline(strategy)
    model.precompile(SPEC)
    made = executables(strategy)
    assert any(record.program.endswith("of stage 1") for record in made)
    run_all(model)
    assert executables(strategy) == made


@pytest.mark.slow
def test_another_process_reads_what_was_compiled(tmp_path):
    environment = {**os.environ, "MILLRACE_CACHE_DIR": str(tmp_path)}
    origins = [
        json.loads(
            subprocess.check_output(
                [sys.executable, SCRIPT, *words], env=environment, text=True, timeout=300
            )
        )
        for words in (["ahead"], [])
    ]
    assert "compiled" in origins[0]
    assert set(origins[1]) <= {"cache", "shared"}  # stages may be equal to others


def test_longer_executions_than_before_are_compiled(strategy):
    model = strategy.attach(mlp(4))
    model.precompile(SPEC)
    model.compile("adam", "mse", steps_per_execution=50)
    model.fit(*data(100), batch_size=4, verbose=0)
    assert executables(strategy)[-1].capacity >= 50


@pytest.mark.parametrize("seeds", [False, True])
def test_the_numbers_are_those_of_a_plain_fit(strategy, seeds):
    found = []
    for precompiles in (False, True):
        keras.utils.set_random_seed(0)
        model = strategy.attach(mlp(seeds=seeds))
        if precompiles:
            before = [np.asarray(variable) for variable in model.variables]
            model.precompile(SPEC)
            for value, variable in zip(before, model.variables, strict=False):
                np.testing.assert_array_equal(value, np.asarray(variable))
        history = model.fit(*data(10), batch_size=4, epochs=2, verbose=0).history
        found.append((history, [np.asarray(variable) for variable in model.variables]))
    (plain_history, plain_values), (history, values) = found
    assert history == plain_history
    for one, other in zip(plain_values, values, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_x_alone_is_enough_for_predict(strategy, is_compiled):
    with strategy.scope():
        model = keras.Sequential([layers.Dense(1)])
    if is_compiled:
        model.compile("adam", "mse")
    model.precompile(jax.ShapeDtypeStruct((4, 8), "float32"))
    (record,) = executables(strategy)
    assert record.program == "predict_run"
    model.predict(data(1)[0], batch_size=4, verbose=0)
    assert executables(strategy) == [record]


@pytest.mark.parametrize(
    ("spec", "options", "error", "message"),
    [
        (SPEC, {"steps_per_epoc": 3}, OptionError, "steps_per_epoch"),
        (SPEC, {"batch_size": 3}, OptionError, "it follows from the shapes of batch_spec"),
        (SPEC, {"steps_per_epoch": 0}, OptionError, "steps_per_epoch must be"),
        ((1.0, 2.0), {}, OptionError, r"Set it to \(\(32, 784\), 'float32'\)"),
        ((*SPEC, SPEC[1], SPEC[1]), {}, OptionError, "Received a tuple of 4"),
    ],
)
def test_what_is_refused(strategy, spec, options, error, message):
    model = strategy.attach(mlp())
    with pytest.raises(error, match=message):
        model.precompile(spec, **options)
    assert strategy.compile_log == ()


def test_a_model_that_is_not_compiled_trains_nothing(strategy):
    with strategy.scope():
        model = keras.Sequential([layers.Dense(1)])
    with pytest.raises(ModelError, match=r"Call model\.compile\(optimizer, loss\) before precom"):
        model.precompile(SPEC)
    assert strategy.compile_log == ()


def test_options_that_do_not_fit_are_refused_before_anything_is_compiled(strategy):
    model = strategy.attach(mlp(3))
    accumulated(model)
    with pytest.raises(PlanError, match=r"steps_per_execution=3 is not a whole .* Set steps_per_e"):
        model.precompile(SPEC)
    assert strategy.compile_log == ()
