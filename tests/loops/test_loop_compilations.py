"""What the compile log has of `millrace.compile`, `repeat` and `while_loop`, and why."""

import logging
import os

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from millrace.api.own_loops.function import compile as compile_function
from millrace.api.own_loops.repeat import repeat, while_loop
from millrace.base.records.compilation import Origin
from millrace.compilation.executables.log import current_log, without_strategy
from millrace.compilation.executables.sharing import sharing
from millrace.errors import RecompilationError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue

HERE = os.path.basename(__file__)
ONES = np.ones(3, np.float32)


def executables(strategy):
    return [record for record in strategy.compile_log if record.is_executable]


def causes(strategy):
    return [record.cause for record in executables(strategy)]


def test_another_shape_is_one_more_compilation(strategy):
    @compile_function
    def train_for_shapes(x):
        return x.sum()

    for _ in range(2):
        strategy.run(train_for_shapes, [np.ones((1, 8), np.float32)])
    assert len(executables(strategy)) == 1
    strategy.run(train_for_shapes, [np.ones((7, 8), np.float32)])
    first, second = executables(strategy)
    assert first.cause == "first compilation"
    assert second.cause == "argument x: shape (1, 8) -> (7, 8)"
    assert second.is_recompilation
    assert (second.program, second.batch) == ("train_for_shapes", "float32[7,8]")
    assert second.origin is Origin.COMPILED
    assert second.peak_bytes > 0
    assert min(second.trace_seconds, second.lower_seconds, second.compile_seconds) > 0


def test_a_tensor_may_change_and_a_constant_may_not(strategy):
    @compile_function
    def multiplied(x, factor):
        return x * factor

    for factor in (10.0, 0.3):
        strategy.run(multiplied, [ONES, factor])
    assert len(executables(strategy)) == 1

    def multiplied_by(factor):
        def by_constant(x):
            return x * factor

        return compile_function(by_constant), by_constant.__code__.co_firstlineno

    for factor in (10, 0.3):
        function, line = multiplied_by(factor)
        strategy.run(function, [ONES])
    assert len(executables(strategy)) == 3
    expected = f"`factor`, closed over by by_constant() at {HERE}:{line}: 10 -> 0.3"
    assert causes(strategy)[-1] == expected
    assert not executables(strategy)[-1].is_recompilation  # it is another function


@pytest.mark.parametrize(
    ("name", "first", "second", "expected"),
    [
        ("dtype", [ONES], [ONES.astype(np.int32)], "argument x: dtype float32 -> int32"),
        ("number", [1], [0.5], "argument x: dtype int32 -> float32"),
        (
            "weak",
            [jnp.ones(3)],
            [jnp.full(3, 1.0)],
            "argument x: weak type no -> yes, of a Python number",
        ),
        ("text", [ONES, "warm"], [ONES, "cold"], "static argument how: 'warm' -> 'cold'"),
        ("truth", [ONES, True], [ONES, False], "static argument how: True -> False"),
        ("among arrays", [[ONES, True]], [[ONES, False]], "argument x[1]: 'True' -> 'False'"),
        ("structure", [[ONES]], [(ONES,)], "argument x: structure ([*]) -> ((*,))"),
        ("default", [ONES], [ONES, None], "how is passed now"),
    ],
)
def test_what_has_changed_is_named(strategy, name, first, second, expected):
    def function(x, how=None):
        return jax.tree.leaves(x)[0] * (2 if how else 3)

    function.__name__ = f"changed_{name.replace(' ', '_')}"
    function = compile_function(function)
    for args in (first, second):
        strategy.run(function, args)
        strategy.run(function, args)
    assert causes(strategy)[1:] == [expected]
    assert executables(strategy)[1].is_recompilation


def test_another_device(strategy):
    @compile_function
    def placed(x):
        return x + 1

    for device in (0, 1, 0, 1):
        result = strategy.run(placed, [jax.device_put(ONES, jax.devices()[device])])
        assert result.devices() == {jax.devices()[device]}
    assert len(executables(strategy)) == 2
    assert "placement cpu:0, memory device -> cpu:1" in causes(strategy)[1]
    assert placed.compilations == 1


def test_variables_on_another_device_than_before(strategy):
    variable = keras.Variable(ONES)
    function = compile_function(lambda x: variable.assign_add(x))
    for device in (0, 2):
        variable._value = jax.device_put(ONES, jax.devices()[device])
        function(ONES)
        np.testing.assert_array_equal(variable.numpy(), 2 * ONES)


def test_another_model(strategy):
    models = [keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]) for _ in range(2)]

    @compile_function
    def apply_model(model, x):
        return model(x)

    for model in models:
        strategy.run(apply_model, [model, np.ones((1, 3), np.float32)])
    assert causes(strategy)[1] == "another model object than before"
    assert not executables(strategy)[1].is_recompilation
    assert executables(strategy)[1].origin is Origin.SHARED


def test_another_object(strategy):
    class Settings:
        def __init__(self, rate):
            self.rate = rate

    @compile_function
    def with_settings(settings, x):
        return x * settings.rate

    for rate in (0.1, 0.2):
        strategy.run(with_settings, [Settings(rate), ONES])
    assert "rate=0.1" in causes(strategy)[1]
    assert "rate=0.2" in causes(strategy)[1]
    assert "argument settings" in causes(strategy)[1]


def test_options_of_jax(strategy):
    function = compile_function(lambda x: x @ x)
    strategy.run(function, [ONES])
    for _ in range(2):
        with jax.default_matmul_precision("float32"):
            strategy.run(function, [ONES])
    strategy.run(function, [ONES])
    assert causes(strategy)[1:] == ["jax_default_matmul_precision: None -> float32"]


def test_functions_made_anew_share_one_executable(strategy):
    for _ in range(2):

        @compile_function
        def made_in_a_loop(x):
            return x * 2 + 1

        strategy.run(made_in_a_loop, [ONES])
    first, second = executables(strategy)
    assert (first.origin, second.origin) == (Origin.COMPILED, Origin.SHARED)
    assert second.cause == "another function object with the same code"
    assert "Define the function once" in second.remedy
    assert second.is_recompilation


def test_jax_does_not_name_any_of_it(strategy):
    texts = []

    class Handler(logging.Handler):
        def emit(self, record):
            texts.append(record.getMessage())

    logger, handler = logging.getLogger("jax._src.interpreters.partial_eval"), Handler()

    @compile_function
    def explained(x, how):
        return x + 1

    jax.config.update("jax_explain_cache_misses", True)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        for how in ("warm", "cold"):
            strategy.run(explained, [ONES, how])
    finally:
        logger.propagate = True
        logger.removeHandler(handler)
        jax.config.update("jax_explain_cache_misses", False)
    assert causes(strategy)[1] == "static argument how: 'warm' -> 'cold'"
    assert not any("warm" in text or "cold" in text or "how" in text for text in texts)


def test_alternating_programs_are_switches_and_a_fused_one_is_not(strategy):
    @compile_function
    def add(x):
        return x + 1

    @compile_function
    def double(x):
        return x * 2

    @compile_function
    def both(x):
        return add(x), double(x)

    for _ in range(3):
        strategy.run(add, [ONES])
        strategy.run(double, [ONES])
    assert strategy.statistics().switches == 5
    np.testing.assert_array_equal(strategy.run(both, [ONES])[1], 2 * ONES)
    strategy.run(both, [ONES])
    assert strategy.statistics().switches == 6
    assert [record.program for record in executables(strategy)] == ["add", "double", "both"]


def test_loops_on_their_own_write_into_the_log_of_the_scope(strategy):
    variable, queue = keras.Variable(0.0), OutfeedQueue()

    def add_up(x):
        variable.assign_add(x)
        queue.enqueue(x)

    def double(x):
        return 2 * x

    with strategy.scope(), InfeedQueue([np.float32(i) for i in range(20)]) as infeed:
        for _ in range(2):
            repeat(3, add_up, infeed=infeed)
        for turns in (2, 3):
            repeat(turns, double, inputs=1.0)
        repeat(2, double, inputs=ONES)
        while_loop(lambda x: x < 100, double, inputs=1.0)
    names = [record.program for record in executables(strategy)]
    assert names == ["repeat of add_up", *["repeat of double"] * 2, "while_loop of double"]
    again = executables(strategy)[2]
    assert again.cause == "argument x: shape () -> (3,)"
    assert again.is_recompilation
    assert strategy.statistics().switches == 2
    assert float(variable.value) == 15


def test_a_constant_in_the_condition(strategy):
    def below(limit):
        return lambda x: x < limit

    with strategy.scope():
        for limit in (3.0, 5.0):
            assert while_loop(below(limit), lambda x: x + 1, inputs=0.0) == limit
    line = below(0).__code__.co_firstlineno
    cause = causes(strategy)[1]
    assert cause.startswith("`limit`, closed over by lambda")
    assert cause.endswith(f" of the condition at {HERE}:{line}: 3.0 -> 5.0")


def test_without_a_strategy_there_is_a_log_too():
    before = len(without_strategy.executables)
    function = compile_function(lambda x: x - 1)
    function(ONES)
    function(ONES)
    assert len(without_strategy.executables) == before + 1
    assert current_log() is without_strategy


def test_scopes_and_runs_nest():
    outer, inner = (millrace.Strategy(devices=1) for _ in range(2))
    with outer.scope():
        inner.run(compile_function(lambda x: x + 3), [ONES])
        compile_function(lambda x: x + 4)(ONES)
    assert len(executables(inner)) == len(executables(outer)) == 1


def test_recompilations_are_refused():
    strategy = millrace.Strategy(devices=1, on_recompile="error")

    @compile_function
    def refused(x):
        return x + 1

    strategy.run(refused, [ONES])
    for _ in range(2):
        with pytest.raises(RecompilationError, match=r"argument x: shape \(3,\) -> \(5,\)"):
            strategy.run(refused, [np.ones(5, np.float32)])
    strategy.run(refused, [ONES])
    assert len(executables(strategy)) == 1


def test_nothing_is_compiled_within_no_recompile(strategy):
    def body(x):
        return x + 1

    traced = []

    @compile_function
    def quiet(x):
        traced.append(x.shape)
        return x + 1

    quiet(ONES)
    repeat(2, body, inputs=0.0)
    with strategy.no_recompile():
        quiet(ONES)
        repeat(5, body, inputs=0.0)
        traced.clear()
        with pytest.raises(RecompilationError, match="quiet would be compiled"):
            quiet(np.ones(5, np.float32))
        with pytest.raises(RecompilationError, match="repeat of body would be compiled"):
            repeat(2, body, inputs=ONES)
    assert traced == []


def test_from_the_cache_on_disk(tmp_path):
    @compile_function
    def kept_on_disk(x):
        return x * 5

    try:
        strategy = millrace.Strategy(devices=1, cache_dir=tmp_path)
        strategy.run(kept_on_disk, [ONES])
        sharing.clear()
        strategy.run(compile_function(kept_on_disk.__wrapped__), [ONES])
    finally:
        millrace.Strategy(devices=1, cache_dir=None)
    assert [record.origin for record in executables(strategy)] == [Origin.COMPILED, Origin.CACHE]


def test_what_calls_the_host_is_not_shared(strategy):
    seen = []
    for number in range(2):

        def record(x, number=number):
            seen.append((number, float(x)))

        @compile_function
        def observed(x, record=record):
            jax.debug.callback(record, x)
            return x

        strategy.run(observed, [1.0])
        jax.effects_barrier()
    assert seen == [(0, 1.0), (1, 1.0)]
    assert {record.origin for record in executables(strategy)} == {Origin.COMPILED}


def test_a_compiled_function_within_one_of_jax():
    function = compile_function(lambda x: x * 3)
    function(2.0)
    assert jax.jit(lambda x: function(x) + 1)(2.0) == 7
    assert jax.grad(lambda x: function(x))(2.0) == 3


def test_without_jit_it_runs_operation_by_operation():
    def body(x):
        return x + 1

    function = compile_function(lambda x: x * 3)
    assert function(2.0) == 6
    with jax.disable_jit():
        assert function(2.0) == 6
        assert repeat(3, body, inputs=1.0) == 4


def test_in_64_bits_it_is_another_program(strategy):
    function = compile_function(lambda x: x * np.float64(1) / 3)
    assert function(ONES).dtype == "float32"
    with jax.enable_x64(True):
        assert function(ONES).dtype == "float64"
    assert function(ONES).dtype == "float32"
    assert function(ONES.astype(np.float64)).dtype == "float32"
    assert function.compilations == 1
