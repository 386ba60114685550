import jax.numpy as jnp
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu.tensorflow.graph_mode import Placeholder, Session, set_graph_mode

compile_on_ipu = ipu.ipu_compiler.compile


def test_f32_results_are_a_list_and_one_program():
    strategy = ipu.ipu_strategy.IPUStrategy()
    x = np.arange(3, dtype=np.float32)
    with strategy.scope():
        actual = compile_on_ipu(lambda x: jnp.sin(x), [x])
        assert isinstance(actual, list)
        np.testing.assert_allclose(actual[0], np.sin(x), rtol=1e-6)
        two = compile_on_ipu(lambda x: (x + 1, x * 2), [x])
        np.testing.assert_array_equal(two, [x + 1, x * 2])
    assert strategy.statistics().compilations == 2  # one for each call


def test_f32_the_same_function_again_compiles_nothing():
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        for number in (1.0, 2.0):
            # A program that no other test has: equal ones are compiled once in a process.
            assert compile_on_ipu(lambda x: 40 * x - 7, [number])[0] == 40 * number - 7
    assert strategy.statistics().compilations == 1


def test_f32_nested_lists_are_numbers():
    def total(rows):
        assert [[value.shape for value in row] for row in rows] == [[(), ()], [(), ()]]
        return rows[0][1] + rows[1][0]

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        assert compile_on_ipu(total, [[[1, 2], [3, 4]]]) == [5]


def test_f32_a_function_without_results():
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        assert "has run" in repr(compile_on_ipu(lambda: None))


def test_f32_without_a_device():
    with pytest.raises(RuntimeError, match=r"outside of a device.*ipu_scope"):
        compile_on_ipu(lambda: 1)
    with pytest.raises(ValueError, match=r"'/device:IPU:0' up to 0.*auto_select_ipus=\[1, 1\]"):
        ipu.scopes.ipu_scope("/device:IPU:1").__enter__()


def test_f32_inside_of_a_compiled_function(system):
    import millrace

    system(1)
    inner = millrace.compile(lambda x: compile_on_ipu(lambda y: y + 1, [x])[0])
    assert ipu.ipu_strategy.IPUStrategy().run(inner, [1.0]) == 2


def test_f32_scopes(caplog):
    def net(x):
        with ipu.scopes.outside_compilation_scope(), ipu.scopes.stochastic_rounding(True):
            with pytest.raises(RuntimeError, match="not within another"):
                ipu.scopes.outside_compilation_scope().__enter__()
            return x * 2

    with ipu.scopes.ipu_scope("/device:IPU:0"), ipu.scopes.frontend_attribute("a", "b"):
        assert compile_on_ipu(net, [3.0]) == [6]
    assert "stochastic_rounding has no effect" in caplog.text
    with pytest.raises(RuntimeError, match="for operations of a compiled function"):
        ipu.scopes.outside_compilation_scope().__enter__()
    with ipu.scopes.partials_type("float16"):
        pass
    with pytest.raises(ValueError, match=r"float16 or float32. Received: 'int8'"):
        ipu.scopes.partials_type("int8").__enter__()


def test_f32_in_graph_mode_a_session_runs_it():
    set_graph_mode(True)
    try:
        outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        with pytest.raises(ValueError, match="before a program was built"):
            outfeed.dequeue()
        infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(lambda: iter(np.ones((9, 2), np.float32)))

        def net(start):
            return ipu.loops.repeat(3, lambda n, x: (n + x[0], outfeed.enqueue(x)), start, infeed)

        start = Placeholder("float32", [])
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            [result] = compile_on_ipu(net, [start])
            alone = compile_on_ipu(lambda: None)
        begin, dequeue = infeed.initializer, outfeed.dequeue()
        with pytest.raises(ValueError, match="asked for twice"):
            _ = infeed.initializer
        with Session() as session:
            session.run(begin)
            assert session.run(result, {start: 2.0}) == 5
            assert session.run(dequeue).shape == (3, 2)
            assert "has run" in repr(session.run(alone))
    finally:
        set_graph_mode(False)
