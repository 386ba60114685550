"""strategy.run: its results, and its errors."""

import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf


@tf.function(jit_compile=True)
def squares(n, x):
    total = tf.zeros([])
    for _ in tf.range(n):
        total += tf.reduce_sum(x * x)
    return {"total": total, "turns": n}


def plain(x):
    return x


@tf.function
def nothing(x):
    del x


def test_f08_run_returns_the_value_of_a_compiled_function(system):
    system(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        result = strategy.run(squares, args=[3], kwargs={"x": np.float32([1, 2])})
        assert strategy.run(nothing, [1.0]) is None
    assert float(result["total"].numpy()) == 15.0
    assert int(result["turns"]) == 3


def test_f08_run_refuses_a_plain_function(system):
    system(1)
    strategy = ipu.ipu_strategy.IPUStrategyV1()
    with strategy.scope(), pytest.raises(ValueError, match=r"takes a compiled function.*plain"):
        strategy.run(plain, [1.0])


def test_f08_run_refuses_double_precision(system):
    system(1)
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope(), pytest.raises(TypeError, match=r"float64.*shape \(3,\).*astype"):
        strategy.run(squares, [1, np.zeros(3)])
