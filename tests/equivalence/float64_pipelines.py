"""Pipelines against the model in one piece, in float64; run by `test_double_precision.py`."""

from dataclasses import replace

import cases
import keras
import pipeline_cases as pipes

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
