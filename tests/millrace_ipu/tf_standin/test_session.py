"""Values that a session computes."""

import sys

import numpy as np
import pytest

from millrace.errors import OptionError
from millrace_ipu import tensorflow as tf
from millrace_ipu.tensorflow.compat import v1
from millrace_ipu.tensorflow.graph_mode import Deferred, is_deferred


def graph(a, b, c, factor):
    return factor * ((a + b) + (a + c))


def test_placeholders_are_fed_and_nothing_is_compiled_again(strategy):
    a, b, c = (v1.placeholder(np.float32, [1, 2], name) for name in "abc")
    factor = tf.placeholder(tf.float32, [])
    result = graph(a, b, c, factor)
    feed = {a: [[1.0, 1.0]], b: [[0.0, 1.0]], c: [[1.0, 5.0]]}
    with strategy.scope(), tf.Session() as session:
        assert session.run(result, {**feed, factor: 10.0}).tolist() == [[30.0, 80.0]]
        assert session.run(result, {**feed, factor: 0.5}).tolist() == [[1.5, 4.0]]
    with strategy.scope(), tf.Session() as session:
        assert session.run([result], {**feed, factor: 1.0})[0].tolist() == [[3.0, 8.0]]
    assert len(strategy.compile_log) == 1


def test_operations_operators_and_trees():
    x = tf.placeholder(tf.float32, [None])
    values = {"mean": tf.reduce_mean(x), "part": (-x)[1:], "power": 2**x, "known": "text"}
    found = v1.Session().run(values, {x: np.array([1, 2, 3])})
    assert float(found["mean"]) == 2.0
    assert found["part"].tolist() == [-2, -3]
    assert found["power"].tolist() == [2, 4, 8]
    assert found["known"] == "text"
    assert is_deferred(values)
    assert not is_deferred([1, x.shape])


def test_what_is_computed_on_the_host_comes_after_the_device():
    x = tf.placeholder(tf.float32, [])
    seen = []

    def look(value):
        seen.append(float(value))
        return {"seen": len(seen)}

    host = Deferred(look, [x * 2], on_host=True)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert session.run([host, x], {x: 3.0}) == [{"seen": 1}, 3.0]
    assert seen == [6.0]


def test_values_that_are_there_are_returned():
    variable = tf.Variable(2.0)
    found = v1.Session().run([variable, tf.constant(3), ["a string"]])
    assert (float(found[0]), int(found[1]), found[2]) == (2.0, 3, ["a string"])


def test_graph_mode_is_switched():
    assert v1.executing_eagerly()
    v1.disable_v2_behavior()
    try:
        assert not tf.executing_eagerly()
    finally:
        v1.enable_v2_behavior()
    with v1.Graph().as_default(), v1.variable_scope("a"), tf.device("cpu"):
        assert v1.get_variable_scope().reuse_variables() is None


def test_a_compiled_function_of_a_placeholder():
    x = tf.placeholder(tf.float32, [])

    @tf.function
    def power(x, n):
        y = 1.0
        for _ in tf.range(n):
            y *= x
        return y

    assert float(tf.Session().run(power(x, 3), {x: 2.0})) == 8.0


def test_wrong_feeds_and_uses():
    x = tf.placeholder(tf.float32, [2], "x")
    session = tf.Session()
    with pytest.raises(OptionError, match=r"shape \(3,\) for <placeholder 'x' float32\[2\]>"):
        session.run(x, {x: [1, 2, 3]})
    with pytest.raises(OptionError, match=r"'x' float32\[2\]> has no value. Set feed_dict="):
        session.run(x + 1)
    with pytest.raises(OptionError, match=r"which is no placeholder. Set feed_dict="):
        session.run(x, {3: [1, 2]})
    with pytest.raises(OptionError, match=r"so `if` cannot test it now. Use tf.where"):
        bool(x > 1)
    with pytest.raises(OptionError, match=r"unpack the result: a, b = session.run"):
        a, b = x + 1
    pair = Deferred(lambda: (1, 2), length=2)
    a, b = pair
    assert session.run([a, b]) == [1, 2]
    assert sys.modules["millrace_ipu.tensorflow"] is tf
