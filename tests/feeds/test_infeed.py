import time
import traceback

import jax
import numpy as np
import pytest

from millrace.base.devices import DeviceGroup
from millrace.programs.feeds.block import Destination
from millrace.programs.feeds.blocks import BlockShape, stacked_blocks
from millrace.programs.feeds.infeed import Infeed
from own_threads import own_threads

pytestmark = pytest.mark.quick

CPU = Destination(DeviceGroup((jax.devices("cpu")[0],)))


def ALWAYS():  # noqa: N802 - a block for every execution
    return True


def blocks(source, size=2, together=False):
    def batches():
        for value in source:
            yield (np.full((4, 1), value, np.float32),)

    sizes = iter(lambda: size, None)
    return lambda is_awaited: stacked_blocks(
        batches(), sizes, BlockShape(2**20, (1, 1), {}), CPU, is_awaited if together else ALWAYS
    )


def values(segments):
    return [
        int(np.asarray(s.block.batches[0])[i, 0, 0])
        for s in segments
        for i in range(s.start, s.start + s.count)
    ]


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def test_executions_do_not_have_to_end_where_blocks_do():
    infeed = Infeed(blocks(range(7)), depth=2)
    assert [values(infeed.take(3)) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]
    assert not infeed.has_more()
    infeed.close()


@pytest.mark.parametrize(("steps", "number"), [(2, 0), (5, 1)])
def test_a_single_block_at_hand_takes_no_thread(steps, number):
    before = len(own_threads())
    infeed = Infeed(blocks(range(steps)), depth=2, steps_at_hand=steps)
    assert len(own_threads()) == before
    assert values(infeed.take(1)) == [0]
    assert len(own_threads()) <= before + number  # of short blocks the thread may be over
    assert values(infeed.take(steps)) == list(range(1, steps))
    assert not infeed.has_more()
    infeed.close()
    assert infeed.statistics().steps == steps


def test_it_looks_ahead_no_further_than_its_depth():
    drawn = []

    def source():
        for i in range(100):
            drawn.append(i)
            yield i

    infeed = Infeed(blocks(source()), depth=3)
    assert wait_until(lambda: len(drawn) >= 8)
    time.sleep(0.05)
    assert len(drawn) == 8  # three blocks of two wait, and a fourth waits for a place
    infeed.close()
    assert infeed.statistics().peak_depth == 3


def test_an_error_of_a_block_at_hand_names_its_batch():
    def source():
        raise TypeError("no array")
        yield

    infeed = Infeed(blocks(source()), depth=2, steps_at_hand=3)
    with pytest.raises(TypeError, match="no array") as caught:
        next(infeed.take(1))
    assert "millrace: raised while batch 0 was prepared." in caught.value.__notes__
    assert not infeed.has_more()
    infeed.close()


@pytest.mark.parametrize("taken", [0, 1])
def test_an_exception_of_the_data_set_comes_where_its_batch_would_have(taken):
    def source():
        yield from range(2 * taken)
        raise RuntimeError("row 17 is broken")

    infeed = Infeed(blocks(source()), depth=2)
    assert values(infeed.take(2 * taken)) == list(range(2 * taken))
    with pytest.raises(RuntimeError, match="row 17") as caught:
        list(infeed.take(1))
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "source" in frames  # the user's own line is in the traceback
    infeed.close()
    assert wait_until(lambda: not own_threads("millrace-infeed"))


@pytest.mark.parametrize("take", [0, 1, 100])
def test_the_thread_ends_when_it_is_closed(take):
    infeed = Infeed(blocks(iter(int, 1)), depth=2)
    list(infeed.take(take))
    infeed.close()
    assert wait_until(lambda: not own_threads("millrace-infeed"))


def test_the_thread_ends_with_the_data():
    infeed = Infeed(blocks(range(2)), depth=2)
    assert wait_until(lambda: not own_threads("millrace-infeed"))
    assert values(infeed.take(2)) == [0, 1]


def test_statistics_count_what_was_taken_and_who_waited():
    def slow():
        for i in range(4):
            time.sleep(0.02)
            yield i

    infeed = Infeed(blocks(slow()), depth=2)
    list(infeed.take(4))
    assert not infeed.has_more()
    infeed.close()
    statistics = infeed.statistics()
    assert (statistics.blocks, statistics.steps, statistics.bytes) == (2, 4, 4 * 16)
    assert statistics.wait_seconds > 0.04
    assert statistics.prepare_seconds > 0.06
