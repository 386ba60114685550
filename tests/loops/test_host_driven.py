import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.host_loop import OnHost, require_host
from millrace.api.own_loops.scope import enclosing_loop
from millrace.errors import ModelError, PlanError


def test_a_function_for_the_host_is_called_as_it_is():
    calls = []

    def train(x):
        calls.append(x)
        require_host()
        return np.asarray(x) + 1

    compiled = millrace.compile(train)
    strategy = millrace.Strategy(devices=1)
    assert strategy.run(compiled, [np.float32(1)]) == 2
    assert calls.pop() == 1  # no traced value
    assert [compiled(2.0), compiled(3.0)] == [3, 4]
    assert calls[-2:] == [2.0, 3.0]  # it was traced again for another device, and once
    assert compiled.compilations == 0
    with pytest.raises(ModelError, match="not a single program"):
        compiled.lower(2.0)


def test_a_trace_around_it_is_told():
    inner = millrace.compile(require_host)
    outer = millrace.compile(lambda: (inner(), 5)[1])
    assert outer() == 5
    assert outer.compilations == 0


def test_a_loop_with_a_body_for_the_host_goes_turn_by_turn():
    total = keras.Variable(np.float32(0))
    queue = millrace.OutfeedQueue()

    def body(count, x):
        require_host()
        total.assign_add(x)
        queue.enqueue({"x": x})
        return count + 1, None

    def train(n):
        return millrace.repeat(n, body, inputs=0, infeed=infeed)

    with millrace.InfeedQueue([np.float32(i) for i in range(9)]) as infeed:
        assert millrace.compile(train)(3) == 3
        goes_on = lambda n: n < 2  # noqa: E731
        assert millrace.while_loop(goes_on, body, inputs=0, infeed=infeed) == 2
    assert total.value == 0 + 1 + 2 + 3 + 4
    np.testing.assert_array_equal(queue.dequeue()["x"], range(5))


def test_nobody_ends_a_trace_that_is_not_there():
    require_host()
    with pytest.raises(OnHost):
        __import__("jax").make_jaxpr(lambda x: require_host() or x)(1.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_body_needs_of_the_number_of_turns_is_checked(compiled):
    total = keras.Variable(np.float32(0))

    def at_most_eight(iterations):
        if iterations > 8:
            raise PlanError(f"{iterations} are too many")

    def body():
        assert enclosing_loop().is_counted
        enclosing_loop().requirements["at most"] = at_most_eight
        total.assign_add(1.0)

    def train(n):
        return millrace.repeat(n, body)

    train = millrace.compile(train) if compiled else train
    train(8)
    with pytest.raises(PlanError, match="10 are too many"):
        train(10)
    assert total.value == 8
    assert enclosing_loop() is None
