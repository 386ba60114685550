import numpy as np
import pytest

from millrace_ipu import ipu

IPUOutfeedQueue = ipu.ipu_outfeed_queue.IPUOutfeedQueue
LAST = ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST


def run(devices, system, body, iterations, inputs=0):
    system(devices)
    with ipu.scopes.ipu_scope("/device:IPU:0"):
        return ipu.ipu_compiler.compile(lambda: ipu.loops.repeat(iterations, body, inputs))


def test_f34_a_second_enqueue_in_one_program(system):
    queue = IPUOutfeedQueue()
    with pytest.raises(ValueError, match="received a second one"):
        run(1, system, lambda n: (n + 1, queue.enqueue(n), queue.enqueue(n)), 2)
    assert run(1, system, lambda n: (n + 1, queue.enqueue(n)), 2) == [2]
    assert run(1, system, lambda n: (n + 2, queue.enqueue(n)), 2) == [4]  # another program
    np.testing.assert_array_equal(queue.dequeue(), [0, 1, 0, 2])


def test_f34_enqueued_and_ten_thousand_elements(system):
    queue = IPUOutfeedQueue(buffer_depth=1)
    assert not queue.enqueued
    assert run(1, system, lambda n: (n + 1, queue.enqueue(n)), 10000) == [10000]
    assert queue.enqueued
    np.testing.assert_array_equal(queue.dequeue(), np.arange(10000))
    assert queue.dropped == 0


@pytest.mark.parametrize(
    "arguments", [{"outfeed_mode": "all"}, {"buffer_depth": 0}, {"device_ordinal": -1}]
)
def test_f34_arguments_of_a_queue(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        IPUOutfeedQueue(**arguments)


@pytest.mark.parametrize("replicas", [1, 2])
def test_f35_shapes(system, replicas):
    every, last = IPUOutfeedQueue(), IPUOutfeedQueue(LAST)
    pair = IPUOutfeedQueue()
    axis = (2,) * (replicas == 2)

    def body(n):
        x = np.ones((4, 4), np.float32) * n
        return n + 1, every.enqueue({"y": x, "a": n}), last.enqueue(x), pair.enqueue((x, [n]))

    for _ in range(2):
        run(replicas, system, body, 10)
    actual = every.dequeue()
    assert list(actual) == ["y", "a"]
    assert actual["y"].shape == (20, *axis, 4, 4)
    assert actual["a"].shape == (20, *axis)
    assert actual["a"].numpy().ravel()[-1] == 9
    assert last.dequeue().shape == (*axis, 4, 4)
    x, [n] = pair.dequeue()
    assert (x.shape, n.shape) == ((20, *axis, 4, 4), (20, *axis))
    assert every.dequeue()["y"].shape == (0, *axis, 4, 4)


def test_f35_nothing_yet():
    assert IPUOutfeedQueue().dequeue() == []
    assert list(IPUOutfeedQueue()) == []
    with pytest.raises(RuntimeError, match="mode='all'"):
        iter(IPUOutfeedQueue(LAST))


def test_f35_elements_one_by_one(system):
    queue = ipu.ipu_outfeed_queue.ScopedIPUOutfeedQueue()
    run(2, system, lambda n: (n + 1.0, queue.enqueue({"b": n, "a": n})), 4, 0.0)
    actual = list(queue)
    assert [list(element) for element in actual] == [["b", "a"]] * 4
    np.testing.assert_array_equal([element["a"] for element in actual], [[k, k] for k in range(4)])
    assert list(queue) == []
    queue.deleter  # noqa: B018 - frees it
