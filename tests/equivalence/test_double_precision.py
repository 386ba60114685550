"""Cutting a model changes rounding, and nothing else.

In float32 a wrong term of 1e-6 would pass for rounding. In float64 rounding is 1e-16, so a pipeline
and the model in one piece must agree to 1e-12. JAX has 64 bits in whole processes only, so this is
a process of its own.
"""

import os
import pathlib
import subprocess
import sys

import pytest

import millrace

HERE = pathlib.Path(__file__).parent
PROGRAM = """
from dataclasses import replace

import cases, keras, pipeline_cases as pipes

keras.config.set_floatx("float64")
EXACT = cases.Tolerance(rtol=1e-12, atol=1e-12)
TRANSFORMER = cases.Case(
    "gpt", pipes.TinyGpt, pipes.next_words, compile=pipes.word_scores, policy="float64"
)
pipes.assert_as_accumulated(replace(TRANSFORMER, tolerance=EXACT), None, devices=3)
clipped = cases.optimizer("SGD", 0.1, momentum=0.9, global_clipnorm=0.1)
for case in cases.MODELS:
    if case.name in ("batchnorm-dropout", "nested", "regularizers-constraints", "masked-embedding"):
        changes = {"policy": "float64", "tolerance": EXACT, "compile": clipped}
        stages = [0, 0, 0, 0, 0, 1, 1] if case.name == "nested" else 2
        model = pipes.assert_as_accumulated(
            replace(case, **changes), stages, pipeline_schedule="zero_bubble"
        )
        assert model.trainable_variables[0].dtype == "float64"
        print(case.name, "agrees")
"""


AGAIN = """
from dataclasses import replace

import cases, keras, millrace
from millrace.programs.plan import Recompute
from millrace.run.fit import functions

keras.config.set_floatx("float64")
EXACT = cases.Tolerance(rtol=1e-12, atol=1e-12)


def attention():
    inputs = keras.Input((5, 3))
    hidden = keras.layers.Dense(4)(inputs)
    hidden = hidden + keras.layers.MultiHeadAttention(2, 2, dropout=0.1)(hidden, hidden)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(hidden)))


# Without BatchNormalization and LayerNormalization, which Keras computes in float32.
for case in cases.MODELS:
    if case.name in ("shared-layer", "subclassed", "lstm", "masked-embedding", "attention"):
        made = {**case.compile(), "optimizer": "sgd"}
        case = replace(
            case, policy="float64", compile=lambda made=made: {**made, "optimizer": "sgd"}
        )
        if case.name == "attention":
            case = replace(case, build=attention)
        plain = cases.train(case)
        for choice in (2, 1000):
            functions.recompute_of = lambda *given: Recompute(choice=choice)
            found = cases.train(case, millrace.Strategy(devices=1), 3)
            cases.assert_same(found, plain, EXACT)
        print(case.name, "agrees")
"""


@pytest.mark.slow
def test_what_is_run_again_agrees_to_the_last_digits_of_float64():
    run(AGAIN, 5)


@pytest.mark.slow
def test_pipelines_agree_to_the_last_digits_of_float64():
    run(PROGRAM, 4)


def run(program, agreements):
    environment = {**os.environ, "JAX_ENABLE_X64": "1", "KERAS_BACKEND": "jax"}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), os.path.dirname(millrace.__path__[0])])
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("agrees") == agreements
