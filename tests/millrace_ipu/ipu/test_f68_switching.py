"""F68, F69, F70, F72, F74: recompilations, alternating programs, and the records of both."""

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace.errors import PlanError, RecompilationError
from millrace_ipu import ipu

X = np.ones((1, 4), np.float32)


@pytest.fixture
def one(system):
    """A strategy on one device."""
    system(1)
    return ipu.ipu_strategy.IPUStrategy()


def model_of(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=2)
    return model


def origins(strategy):
    return [record.origin.value for record in strategy.compile_log if record.is_executable]


def test_f68_a_second_scope_inside_the_first_raises(one):
    other = ipu.ipu_strategy.IPUStrategy()
    with one.scope(), pytest.raises(PlanError, match=r"already active.*Leave the first"):
        other.scope().__enter__()
    with other.scope():  # one after another is fine
        pass


def test_f68_scopes_one_after_another_use_the_same_programs(one):
    strategies = [one, ipu.ipu_strategy.IPUStrategy()]
    for strategy in strategies:
        with strategy.scope():
            model_of_scope = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            model_of_scope.compile("sgd", "mse", steps_per_execution=2)
            model_of_scope.fit(np.ones((2, 4)), np.ones((2, 3)), batch_size=1, verbose=0)
    assert origins(strategies[0]) == ["compiled"]
    assert origins(strategies[1]) == ["shared"]


def functions():
    @millrace.compile
    def double(x):
        return x * 2

    @millrace.compile
    def triple(x):
        return x * 3

    @millrace.compile
    def both(x):
        return x * 2, x * 3

    return double, triple, both


def test_f69_alternating_programs_are_counted_and_one_program_of_both_is_not(one):
    double, triple, both = functions()
    for _ in range(3):
        one.run(double, [X])
        one.run(triple, [X])
    assert one.statistics().switches == 5
    assert one.statistics().compilations == 2
    two, three = one.run(both, [X])
    before = one.statistics()
    for _ in range(3):
        two, three = one.run(both, [X])
    assert one.statistics() == before
    np.testing.assert_array_equal(two, 2 * X)
    np.testing.assert_array_equal(three, 3 * X)
    assert one.statistics().compilations == 3


def test_f70_a_batch_size_is_a_program_and_the_message_names_both(one):
    double, _, _ = functions()
    one.run(double, [X])
    one.run(double, [X])
    assert len(origins(one)) == 1
    one.run(double, [np.ones((7, 4), np.float32)])
    _, second = (r for r in one.compile_log if r.is_executable)
    assert second.is_recompilation
    assert "shape (1, 4) -> (7, 4)" in second.cause


def test_f70_the_message_of_a_model_names_both_batch_sizes(one):
    model = model_of(one)
    for rows, epochs in ((2, 2), (2, 1), (6, 1)):
        x = np.ones((rows, 4), np.float32)
        model.fit(x, x[:, :1], batch_size=rows // 2, epochs=epochs, verbose=0)
    records = [record for record in one.compile_log if record.is_executable]
    assert len(records) == 2
    assert "shape (1, 4) -> (3, 4)" in records[1].cause


def test_f72_the_difference_of_two_programs_is_the_constant_that_differs():
    def scaled(factor):
        return millrace.compile(lambda x: factor * (x + x)).lower(X)

    assert millrace.diff_programs(scaled(10.0), scaled(0.3)) == ("constant tensor<f32> 10 -> 0.3",)
    frozen = [jax.jit(lambda x, w=w: x @ w).lower(X) for w in (np.eye(4), np.ones((4, 4)))]
    (text,) = millrace.diff_programs(*frozen)
    assert text.startswith("constant tensor<4x4xf")


def test_f74_warm_programs_pass_and_others_are_named(one):
    double, _, _ = functions()
    one.run(double, [X])
    with one.no_recompile():
        before = one.statistics()
        one.run(double, [X])
        with pytest.raises(RecompilationError, match=r"double would be compiled.*keep the shapes"):
            one.run(double, [np.ones((5, 4), np.float32)])
    assert one.statistics().compilations == before.compilations
