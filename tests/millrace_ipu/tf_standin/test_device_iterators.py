"""Iterators for compiled functions: in loops, outside of them, and where they are refused."""

import numpy as np
import pytest

import millrace
from millrace.errors import QueueError, UnsupportedError
from millrace_ipu import tensorflow as tf


def iterator(elements=20, **arguments):
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(elements, dtype="float32"))
    with tf.device_iterators():
        return iter(dataset.map(lambda x: {"value": x}) if arguments else dataset)


@tf.function
def one(iterator):
    return next(iterator)


@tf.function
def one_and_loop(iterator, n):
    first = next(iterator)
    second = next(iterator)
    total = 0.0
    for _ in tf.range(n):
        total += next(iterator)
    return first, second, total


@tf.function
def draw_in_helper(iterator, n):
    total = 0.0
    for i in tf.range(n):
        total = drawn_plus(iterator, total) * tf.cast(i + 1, tf.float32) / (i + 1)
    return total


def drawn_plus(iterator, total):
    return total + next(iterator)["value"]


def test_each_call_takes_the_next_element():
    it = iterator()
    assert [float(one(it)) for _ in range(4)] == [0, 1, 2, 3]
    assert one.compilations == 1


def test_elements_before_and_in_a_loop():
    it = iterator()
    assert [float(v) for v in one_and_loop(it, 3)] == [0, 1, 2 + 3 + 4]
    assert [float(v) for v in one_and_loop(it, 3)] == [5, 6, 7 + 8 + 9]
    assert one_and_loop.compilations == 1


def test_an_element_that_a_function_draws_in_the_loop():
    it = iterator(named=True)
    assert float(draw_in_helper(it, 4)) == 0 + 1 + 2 + 3
    assert "4 elements" in repr(it)


def test_a_lowered_function_takes_nothing():
    it = iterator()
    one.lower(it)
    assert float(one(it)) == 0


def test_python_is_refused_in_a_scope_and_not_outside():
    it = iterator()
    with pytest.raises(QueueError, match=r"compiled functions only.*enable_dataset_iterators=Fal"):
        next(it)
    with pytest.raises(RuntimeError):
        list(it)
    with pytest.raises(UnsupportedError, match=r"Repeat the data set, and call next\(\)"):
        it.get_next_as_optional()
    assert it.element_spec.shape == ()
    assert [float(x) for x in tf.data.Dataset.range(2)] == [0, 1]


def test_two_iterators_and_two_elements_of_a_turn():
    first, second = iterator(), iterator()

    @tf.function
    def both(n):
        for _ in tf.range(n):
            next(first)
            next(second)

    @tf.function
    def twice(n):
        for _ in tf.range(n):
            next(first)
            next(first)

    @tf.function
    def native(n):
        millrace.repeat(n, lambda: one.python_function(first) and None)

    with pytest.raises(QueueError, match=r"ors.py:\d+ draws from two iterators.*Dataset.zip"):
        both(2)
    with pytest.raises(QueueError, match=r"calls next\(\) twice in one iteration.*batch\(2"):
        twice(2)
    with pytest.raises(QueueError, match=r"not over tf.range\(\). Set infeed_queue="):
        native(2)
