"""Recomputation against the plain step, in float64; run by `test_double_precision.py`."""

from dataclasses import replace

import cases
import keras

import millrace
from millrace.programs.plan import Recompute
from millrace.run.fit import functions

keras.config.set_floatx("float64")
EXACT = cases.Tolerance(rtol=1e-12, atol=1e-12)
# Without BatchNormalization and LayerNormalization, which Keras computes in float32.
NAMES = ("shared-layer", "subclassed", "lstm", "masked-embedding", "attention")


def attention():
    inputs = keras.Input((5, 3))
    hidden = keras.layers.Dense(4)(inputs)
    hidden = hidden + keras.layers.MultiHeadAttention(2, 2, dropout=0.1)(hidden, hidden)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(hidden)))


for case in [case for case in cases.MODELS if case.name in NAMES]:
    build = attention if case.name == "attention" else case.build
    compilation = {**case.compile(), "optimizer": "sgd"}
    case = replace(case, policy="float64", build=build, compile=compilation.copy)
    plain = cases.train(case)
    for choice in (2, 1000):
        functions.recompute_of = lambda *_, choice=choice: Recompute(choice=choice)
        found = cases.train(case, millrace.Strategy(devices=1), 3)
        cases.assert_same(found, plain, EXACT)
    print(case.name, "agrees")
