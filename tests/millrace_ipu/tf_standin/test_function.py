"""tf.function: loops over tf.range, arguments, and what is not converted."""

import keras
import numpy as np
import pytest

from millrace.errors import LoopError, OptionError
from millrace_ipu import tensorflow as tf


@tf.function
def doubled(x):
    return x * 2


@tf.function(jit_compile=True)
def sum_and_last(n):
    total = 0
    for i in tf.range(n):
        total += i
        last = i * 10
    return total, last


@tf.function(experimental_compile=True)
def table(n):
    total = tf.zeros([2])
    for i in tf.range(1, n, 2):
        row = tf.zeros([])
        for j in tf.range(3):
            row = row + tf.cast(i * j, tf.float32)
        if n > 5:  # of Python: n is part of the program
            row = row / 2
        total = total + tf.stack([row, 1.0])
    return total


def test_a_function_and_its_result():
    result = doubled(tf.constant([1.0, 2.0]))
    assert result.numpy().tolist() == [2.0, 4.0]
    assert doubled.python_function(3) == 6
    assert "doubled" in repr(doubled)


def test_a_loop_carries_what_is_needed_again():
    total, last = sum_and_last(5)
    assert (int(total), int(last)) == (10, 40)


def test_the_number_of_turns_may_be_a_value_of_the_device():
    before = sum_and_last.compilations
    for n in (3, 6):
        total, _ = sum_and_last(tf.constant(n))
        assert int(total) == n * (n - 1) // 2
    assert sum_and_last.compilations == before + 1


def test_loops_within_loops_with_bounds_and_steps():
    # i = 1, 3, 5, 7; the rows are 3 i, halved since 8 > 5
    np.testing.assert_allclose(table(8), [3 * (1 + 3 + 5 + 7) / 2, 4])


def test_closures_are_seen_as_they_change():
    factor = 2.0

    @tf.function
    def scaled(x):
        for _ in tf.range(2):
            x = x * factor
        return x

    factor = 3.0
    assert float(scaled(tf.constant(1.0))) == 9.0


def test_methods():
    class Counter:
        def __init__(self, step):
            self.step = step

        @tf.function
        def count(self, n, start=0):
            for _ in tf.range(n):
                start = start + self.step
            return start

    ones, twos = Counter(1), Counter(2)
    assert [int(ones.count(3)), int(twos.count(3, start=1)), int(ones.count(3))] == [3, 7, 3]
    assert ones.count.compilations == 1


def helper(x, n):
    for _ in tf.range(n):
        x = x + 1
    return x


def test_functions_that_are_called_are_converted_too():
    @tf.function
    def outer(x):
        return helper(doubled(x), 2)

    assert float(outer(tf.constant(4.0))) == 10.0


def test_python_loops_stay():
    @tf.function
    def unrolled(x):
        for k in range(3):
            if k == 1:
                continue
            x = x + k
        return x

    assert float(unrolled(tf.constant(1.0))) == 3.0


def test_a_layer_that_counts_has_its_new_value():
    count = tf.Variable(0, name="a/count")

    @tf.function
    def add(n):
        for _ in tf.range(n):
            count.assign_add(2)

    add(4)
    assert isinstance(count, tf.Variable)
    assert isinstance(count, keras.Variable)
    assert (count.numpy(), count.dtype) == (8, "int32")


def test_lambdas_are_compiled_as_they_are():
    shifted = tf.function(lambda x, by: x + by)
    assert float(shifted(tf.constant(1.0), 2)) == 3.0


@tf.function
def with_break(n):
    for i in tf.range(n):
        if i == 3:
            break
    return i


@tf.function
def with_return(n):
    for i in tf.range(n):
        return i
    return n


@tf.function
def with_else(n):
    for _ in tf.range(n):
        pass
    else:
        n = 0
    return n


@tf.function
def by_name(n):
    for _ in tf.range(limit=n):
        pass


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (with_break, "`break` in a loop over tf.range"),
        (with_return, "`return` in a loop over tf.range"),
        (with_else, "`else` of a loop in a loop over tf.range"),
        (by_name, "an argument of tf.range.. by name"),
    ],
)
def test_what_is_not_converted_is_named_with_its_line(function, what):
    first = function.python_function.__code__.co_firstlineno
    with pytest.raises(LoopError, match=rf"test_function.py:(\d+): {what}.*Python's range") as info:
        function(5)
    line = int(str(info.value).split(":")[1])
    assert first < line <= first + 5


def test_conditions_of_the_device_are_refused():
    @tf.function
    def absolute(x):
        return -x if x < 0 else x

    with pytest.raises(LoopError, match=r"tests a value in an `if`.*tf.where\(\), tf.cond\(\)"):
        absolute(tf.constant(1.0))
    with pytest.raises(LoopError, match=r"from one iteration to the next that is not an array"):
        tf.function(keep_objects)(3)


def keep_objects(n):
    kept = object()
    for _ in tf.range(n):
        kept = [kept]
    return kept


def test_wrong_uses_of_the_decorator():
    with pytest.raises(OptionError, match=r"takes a function. Received: 3 of type int"):
        tf.function(3)
    with pytest.raises(OptionError, match=r"no arguments \['jit'\]. It takes func"):
        tf.function(jit=True)


def test_a_strategy_runs_and_logs_it(strategy):
    result = strategy.run(doubled, [tf.constant([4.0])])
    assert result.tolist() == [8.0]
    assert len(strategy.compile_log) == 1
    assert strategy.compile_log[0].program == "doubled"
    assert "2.0" in doubled.lower(tf.constant([4.0])).as_text()
