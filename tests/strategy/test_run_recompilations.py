"""What `strategy.run` says of functions of `jax.jit` that are compiled again, and JAX does not."""

import itertools
import logging
import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import millrace
from millrace.base.records.compilation import Origin
from millrace.errors import RecompilationError

HERE = os.path.basename(__file__)
ONES = np.ones(3, np.float32)
_count = itertools.count()


def named(function):
    """Gives a function a name of its own: what is said depends on what had the name before."""
    function.__name__ = f"{function.__name__.strip('<>')}_{next(_count)}"
    return function


def fresh(static=()):
    """Makes a function that JAX has not seen."""

    def scale(x, k=2):
        return x * k

    return jax.jit(named(scale), static_argnames=static)


def on(device, value=ONES):
    return jax.device_put(value, jax.devices()[device])


def in_host_memory():
    device = jax.devices()[0]
    return jax.device_put(
        ONES, jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    )


@pytest.fixture
def explanations():
    """What JAX explains of its cache misses meanwhile."""
    texts = []

    class Handler(logging.Handler):
        def emit(self, record):
            texts.append(record.getMessage())

    logger, handler = logging.getLogger("jax._src.interpreters.partial_eval"), Handler()
    jax.config.update("jax_explain_cache_misses", True)
    logger.addHandler(handler)
    logger.propagate = False
    yield texts
    logger.propagate = True
    logger.removeHandler(handler)
    jax.config.update("jax_explain_cache_misses", False)


# Calls one after the other, what the second one is told, and what JAX's own words lack of it:
# "" if it says nothing at all, None if they say it, too.
CALLS = {
    "shape": (
        [((np.ones((1, 4), np.float32),), {}), ((np.ones((7, 4), np.float32),), {})],
        "argument x: shape (1, 4) -> (7, 4)",
        None,
    ),
    "dtype": (
        [((ONES,), {}), ((ONES.astype(np.int32),), {})],
        "argument x: dtype float32 -> int32",
        None,
    ),
    "weak type": (
        [((np.float32(1),), {}), ((1.0,), {})],
        "argument x: weak type no -> yes, of a Python number",
        None,
    ),
    "kind of number": ([((1,), {}), ((1.5,), {})], "argument x: dtype int32 -> float32", None),
    "default passed": ([((ONES,), {}), ((ONES, 2), {})], "k is passed now", "k is passed"),
    "by keyword": (
        [((ONES, 2), {}), ((ONES,), {"k": 2})],
        "arguments passed by keyword: none -> k",
        "keyword",
    ),
    "bound to a device": (
        [((jnp.asarray(ONES),), {}), ((on(0),), {})],
        "argument x: placement free -> cpu:0, memory ",
        "",
    ),
    "another device": (
        [((on(0),), {}), ((on(1),), {})],
        "argument x: placement cpu:0, memory device -> cpu:1, memory device",
        "",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_what_has_changed_is_named(strategy, explanations, case):
    calls, expected, missing = CALLS[case]
    function = fresh()
    for args, kwargs in calls:
        explanations.clear()
        strategy.run(function, args, kwargs)
        strategy.run(function, args, kwargs)
    first, second = strategy.compile_log
    assert (first.cause, first.is_recompilation) == ("first compilation", False)
    assert expected in second.cause
    assert second.is_recompilation
    assert second.remedy
    if missing == "":
        assert explanations == []
    elif missing is not None:
        assert missing not in "".join(explanations)


def test_static_values_are_shown(strategy, explanations):
    function = fresh(static=("k",))
    for k in (2, 3):
        strategy.run(function, [ONES], {"k": k})
    record = strategy.compile_log[1]
    assert record.cause == "static argument k: 2 -> 3"
    assert "2 -> 3" not in explanations[-1]
    assert "static" not in explanations[-1]


def test_the_structure_of_an_argument(strategy):
    function = jax.jit(named(lambda pair: pair[0] + pair[1]))
    strategy.run(function, [[ONES, ONES]])
    strategy.run(function, [(ONES, ONES)])
    assert "argument pair: structure ([*, *]) -> ((*, *))" in strategy.compile_log[1].cause


def test_host_memory(strategy):
    function = fresh()
    strategy.run(function, [on(0)])
    try:
        strategy.run(function, [in_host_memory()])
    except Exception:  # the oldest versions cannot compute with what lies there
        pytest.skip("this JAX does not compute with arrays in host memory")
    assert "memory device -> cpu:0, memory pinned_host" in strategy.compile_log[1].cause


def test_options_of_jax(strategy):
    function = fresh()
    strategy.run(function, [ONES])
    with jax.default_matmul_precision("float32"):
        strategy.run(function, [ONES])
    assert strategy.compile_log[1].cause == "jax_default_matmul_precision: None -> float32"


def test_a_function_made_anew_is_a_recompilation(strategy):
    name = f"made_anew_{next(_count)}"
    for _ in range(2):

        def function(x):
            return x + 1

        function.__name__ = name
        strategy.run(jax.jit(function), [ONES])
    first, second = strategy.compile_log
    assert not first.is_recompilation
    assert second.is_recompilation
    assert second.cause.startswith("another function object with the same code")
    assert "Define the function once" in second.remedy or "in the program" in second.cause


def test_a_lambda_made_anew_is_known_by_its_place(strategy):
    for _ in range(2):
        strategy.run(jax.jit(lambda x: x - 1), [ONES])
    second = strategy.compile_log[1]
    assert second.program.startswith(f"<lambda> at {HERE}:")
    assert second.is_recompilation


def test_what_a_function_closes_over(strategy, explanations):
    def scaled_by(rate):
        def scaled_by_rate(x):
            return x * rate

        return jax.jit(scaled_by_rate)

    for rate in (0.1, 0.2):
        strategy.run(scaled_by(rate), [ONES])
    second = strategy.compile_log[1]
    line = scaled_by(0).__wrapped__.__code__.co_firstlineno
    assert second.cause == f"`rate`, closed over by scaled_by_rate() at {HERE}:{line}: 0.1 -> 0.2"
    assert "pass it as an argument" in second.remedy
    assert not any("`rate`" in text or "0.2" in text for text in explanations)


def test_globals(strategy, explanations):
    source = "def scaled_by_global(x):\n    return x * SCALE\n"
    for scale in (1.0, 2.0):
        names = {"SCALE": scale}
        exec(compile(source, "model.py", "exec"), names)
        strategy.run(jax.jit(names["scaled_by_global"]), [ONES])
    cause = strategy.compile_log[1].cause
    assert cause == "`SCALE`, a global that scaled_by_global() reads at model.py:1: 1.0 -> 2.0"
    assert not any("SCALE" in text for text in explanations)


def test_default_values(strategy, explanations):
    def made_with(factor):
        def scaled_by_default(x, factor=factor):
            return x * factor

        return jax.jit(scaled_by_default)

    for factor in (2.0, 3.0):
        strategy.run(made_with(factor), [ONES])
    assert "default of `factor` in scaled_by_default()" in strategy.compile_log[1].cause
    assert "2.0 -> 3.0" in strategy.compile_log[1].cause
    assert not any("factor" in text for text in explanations)


def test_the_record_of_a_function(strategy):
    function = fresh()
    strategy.run(function, [ONES])
    (record,) = strategy.compile_log
    assert record.program == function.__name__
    assert record.batch == "float32[3]"
    assert record.origin is Origin.COMPILED
    assert min(record.trace_seconds, record.lower_seconds, record.compile_seconds) > 0
    assert record.peak_bytes >= 24
    assert len(record.key) == 16
    assert strategy.statistics().compilations == 1


def test_arguments_that_are_given_away(strategy):
    def gives_away(x):
        return x + 1

    function = jax.jit(named(gives_away), donate_argnums=0)
    for size in (3, 5):
        x = jnp.ones(size)
        strategy.run(function, [x])
        assert x.is_deleted()
    first, second = strategy.compile_log
    assert second.cause == "argument x: shape (3,) -> (5,)"
    assert first.peak_bytes > 0


def test_a_function_inside_of_another_is_no_program(strategy):
    inner = fresh()

    def outer(x):
        return inner(inner(x)) + inner(x)

    strategy.run(jax.jit(named(outer)), [ONES])
    (record,) = strategy.compile_log
    assert record.program.startswith("outer")


def test_what_was_called_elsewhere_is_not_compiled_again():
    function = fresh()
    with jax.default_device(jax.devices()[0]):
        function(ONES)
    strategy = millrace.Strategy(devices=1, on_recompile="error")
    with strategy.no_recompile():
        strategy.run(function, [ONES])
    assert strategy.compile_log == ()


def test_a_recompilation_is_refused_before_it_takes_place():
    strategy = millrace.Strategy(devices=1, on_recompile="error")
    traced = []

    def refused(x):
        traced.append(x.shape)
        return x + 1

    function = jax.jit(named(refused))
    strategy.run(function, [ONES])
    for _ in range(2):
        with pytest.raises(RecompilationError, match=r"shape \(3,\) -> \(5,\).*refuses it"):
            strategy.run(function, [np.ones(5, np.float32)])
    strategy.run(function, [ONES])
    assert len(strategy.compile_log) == 1
    assert traced == [(3,)]


def test_a_recompilation_is_warned_of():
    strategy = millrace.Strategy(devices=1, on_recompile="warn")
    function = fresh()
    strategy.run(function, [ONES])
    with pytest.warns(RuntimeWarning, match=r"is compiled again: argument x: shape"):
        strategy.run(function, [np.ones(5, np.float32)])


def test_nothing_is_compiled_within_no_recompile(strategy):
    function = fresh()
    strategy.run(function, [ONES])
    with strategy.no_recompile():
        strategy.run(function, [ONES])
        with pytest.raises(RecompilationError, match=r"for float32\[5\] would be compiled"):
            strategy.run(function, [np.ones(5, np.float32)])
    strategy.run(function, [np.ones(5, np.float32)])
    assert len(strategy.compile_log) == 2


def test_from_the_cache_on_disk(tmp_path):
    function = fresh()
    try:
        strategy = millrace.Strategy(devices=1, cache_dir=tmp_path)
        for _ in range(2):
            strategy.run(function, [ONES])
            function.clear_cache()
    finally:
        millrace.Strategy(devices=1, cache_dir=None)
    assert [record.origin for record in strategy.compile_log] == [Origin.COMPILED, Origin.CACHE]
    assert strategy.statistics().cache_hits == 1


def test_threads_have_their_own_watch(strategy):
    functions = [fresh() for _ in range(4)]
    threads = [threading.Thread(target=strategy.run, args=(f, [ONES])) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    records = [record for record in strategy.compile_log if record.is_executable]
    assert {record.program for record in records} == {f.__name__ for f in functions}


def test_an_exception_of_the_function_comes_out_and_is_no_compilation():
    strategy = millrace.Strategy(devices=1, on_recompile="error")

    def fails(x):
        if len(x) > 3:
            raise KeyError("mine")
        return x

    function = jax.jit(named(fails))
    with pytest.raises(KeyError, match="mine"):
        strategy.run(function, [np.ones(5, np.float32)])
    assert strategy.compile_log == ()
    strategy.run(function, [ONES])
    (record,) = strategy.compile_log
    assert not record.is_recompilation


def test_an_executable_of_jax_is_run_as_it_is(strategy):
    compiled = fresh().lower(ONES).compile()
    np.testing.assert_array_equal(strategy.run(compiled, [ONES]), 2 * ONES)
    assert strategy.compile_log == ()


def test_alternating_functions_are_counted_as_switches(strategy):
    def both(x):
        return first(x), second(x)

    first, second, fused = fresh(), fresh(), jax.jit(named(both))
    for _ in range(3):
        strategy.run(first, [ONES])
        strategy.run(second, [ONES])
    assert strategy.statistics().switches == 5
    for _ in range(3):
        strategy.run(fused, [ONES])
    assert strategy.statistics().switches == 6
    assert strategy.statistics().compilations == 3
