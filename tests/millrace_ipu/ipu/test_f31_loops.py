import numpy as np
import pytest

from millrace_ipu import ipu


def pairs():
    return iter([(np.ones(800, np.float32), np.ones(800, np.float32))] * 20)


def test_f31_ten_iterations_with_both_queues(system):
    system(1)
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(pairs)
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def body(counter, x1, x2):
        operation = outfeed.enqueue({"d1": x1 + x2, "d2": x1 - x2})
        return counter + 1, operation

    def my_net():
        return ipu.loops.repeat(10, body, [0], infeed)

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        [counter] = ipu.ipu_compiler.compile(my_net, inputs=[])
    assert counter == 10
    actual = outfeed.dequeue()
    assert list(actual) == ["d1", "d2"]
    np.testing.assert_array_equal(actual["d1"], np.full((10, 800), 2.0))
    np.testing.assert_array_equal(actual["d2"].numpy(), np.zeros((10, 800)))


def test_f31_carried_values_keep_their_type():
    with pytest.raises(TypeError, match=r"\[float32\[\]\].*inputs are \[int32\[\]\]"):
        ipu.loops.repeat(3, lambda x: x + 0.5, inputs=0)


def test_f31_an_error_of_arity_names_the_counts():
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(pairs)
    with pytest.raises(TypeError, match=r"2 from inputs and 2 from the infeed.*takes 3 arguments"):
        ipu.loops.repeat(3, lambda a, b, c: (a, b), [0, 0], infeed)


def test_f31_operations_come_after_values():
    with pytest.raises(ValueError, match="number 0 is None and comes before a value"):
        ipu.loops.repeat(3, lambda x: (None, x), inputs=0)


def test_f31_results():
    assert ipu.loops.repeat(2, lambda: None) is None
    assert ipu.loops.repeat(2, lambda a: a + 1, 1) == 3
    a, b = ipu.loops.repeat(2, lambda a, b: [a + 1, b * 2], [0, 1])
    assert (a, b) == (2, 4)
    last = ipu.loops.while_loop(lambda n: n < 5, lambda n: n + 2, [0], maximum_iterations=9)
    assert last == 6
