import threading

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat
from millrace.errors import DTypeError, ModelError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue


def test_one_program_with_everything_inside(strategy):
    queue = OutfeedQueue()

    @compile_function
    def function(x):
        queue.enqueue(x)
        return {"sum": keras.ops.sum(x), "twice": 2 * x}

    result = strategy.run(function, [np.ones(3, np.float32)])
    assert float(result["sum"]) == 3
    np.testing.assert_array_equal(result["twice"], [2, 2, 2])
    np.testing.assert_array_equal(queue.dequeue(), np.ones((1, 3)))
    assert function.compilations == 1
    assert repr(function) == "<millrace.compile of function>"


def test_the_pattern_of_a_training_function(strategy):
    x = np.random.default_rng(0).standard_normal((100, 8, 4), dtype=np.float32)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.01)
        infeed, losses = InfeedQueue(list(zip(x, x[..., :1], strict=True))), OutfeedQueue()

    from millrace.api.own_loops.gradients import value_and_grad

    @compile_function
    def train(steps, infeed, model, optimizer):
        def step(x, y):
            weights = model.trainable_variables
            loss, grads = value_and_grad(lambda: keras.ops.mean((model(x) - y) ** 2), weights)
            optimizer.apply(grads, weights)
            losses.enqueue(loss)

        repeat(steps, step, infeed=infeed)

    seen, counter = [], threading.Event()

    def read():
        while len(seen) < 100 and not counter.wait(0.001):
            seen.extend(float(loss) for loss in losses)

    thread = threading.Thread(target=read)
    thread.start()
    strategy.run(train, args=[60, infeed, model, optimizer])
    strategy.run(train, args=[40, infeed, model, optimizer])
    thread.join(10)
    counter.set()
    assert len(seen) == 100
    assert seen[-1] < seen[0]
    assert int(optimizer.iterations) == 100
    assert train.compilations == 1
    infeed.close()


def test_numbers_are_arguments_and_objects_are_part_of_the_program():
    traces = []

    @compile_function
    def function(x, how, *, factor=1.0):
        traces.append(how)
        return x * factor + (1 if how else 0)

    assert function(2, True) == 3
    assert function(3, True) == 4
    assert function(3, True, factor=2.0) == 7
    assert function(3, True, factor=4.0) == 13
    assert function(3, False, factor=4.0) == 12
    assert function.compilations == 3
    assert function(3.5, False, factor=4.0) == 14
    assert function.compilations == 4
    assert len(traces) == 2 * 4  # a look, and the program


def test_models_as_arguments():
    first, second = (keras.Variable(float(i)) for i in (1, 2))

    @compile_function
    def double(variable):
        variable.assign(2 * variable)
        return variable

    assert double(first) == 2
    assert double(second) == 4
    assert double(first) == 4
    assert (first.numpy(), second.numpy()) == (4, 4)
    assert double.compilations == 2


def test_values_given_to_variables_from_outside_are_seen():
    variable = keras.Variable(1.0)
    function = compile_function(lambda: variable + 1)
    assert function() == 2
    variable.assign(5.0)
    assert function() == 6
    variable.assign(np.float32(7))
    assert function() == 8
    assert function.compilations == 1


def test_a_value_that_somebody_else_holds_stays():
    variable = keras.Variable([1.0, 2.0])
    other = keras.Variable([0.0, 0.0])
    other.assign(variable.value)
    held = variable.value

    def body():
        variable.assign_add([1.0, 1.0])

    compile_function(lambda: repeat(3, body))()
    with InfeedQueue([np.float32(i) for i in range(9)]) as infeed:
        repeat(3, lambda x: body(), infeed=infeed)
    np.testing.assert_array_equal(held, [1, 2])
    np.testing.assert_array_equal(other.numpy(), [1, 2])
    np.testing.assert_array_equal(variable.numpy(), [7, 8])


def test_a_variable_made_anew_in_each_call():
    @compile_function
    def function():
        return keras.layers.Dense(1)(np.ones((1, 2), np.float32))

    with pytest.raises(ModelError, match="creates new variables whenever it is called"):
        function()


def test_loops_in_a_function_of_jax():
    variable = keras.Variable(1.0, name="mine")

    def body(x):
        return x + variable

    with pytest.raises(ModelError, match=r"\['mine'\].*Set millrace.compile\(fn\)"):
        jax.jit(lambda: repeat(3, body, inputs=0.0))()
    assert jax.jit(lambda x: repeat(3, lambda c: c + x, inputs=0.0))(2.0) == 6


def test_float64_is_refused_by_run(strategy):
    function = compile_function(lambda x: x)
    with pytest.raises(DTypeError, match="float64"):
        strategy.run(function, [np.zeros(3)])
    assert function(np.zeros(3)).dtype == "float32"


def test_numbers_that_32_bits_do_not_hold():
    with pytest.raises(OverflowError):
        compile_function(lambda x: x)(2**40)


def test_it_can_be_lowered():
    variable = keras.Variable(1.0)
    text = compile_function(lambda x: x + variable).lower(1.0).as_text()
    assert "add" in text


def test_threads_share_a_program():
    queue = OutfeedQueue()
    total = keras.Variable(0.0)

    def body():
        total.assign_add(1.0)
        queue.enqueue(1.0)

    function = compile_function(lambda n: repeat(n, body))
    function(1)
    threads = [threading.Thread(target=function, args=(50,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert queue.dequeue().sum() == 151
    assert total.numpy() == 151


def test_it_runs_on_the_device_of_the_strategy():
    strategy = millrace.Strategy(devices=jax.devices()[3:4])
    variable = keras.Variable(1.0)
    function = compile_function(lambda x: x + variable)
    assert strategy.run(function, [1.0]).devices() == {jax.devices()[3]}
    assert function(1.0).devices() == {jax.devices()[0]}
