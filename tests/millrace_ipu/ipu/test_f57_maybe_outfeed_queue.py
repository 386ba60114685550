"""F57 and F62: values that leave a program, and their filters."""

import keras
import numpy as np
import pytest
from examples_of_ipu import load

import millrace
from millrace_ipu import ipu
from millrace_ipu.ipu.ipu_outfeed_queue import IPUOutfeedMode
from millrace_ipu.ipu.outfeed_callback import OutfeedCallback
from millrace_ipu.ipu.outfeed_wrapper import MaybeOutfeedQueue

X = np.arange(3, dtype="float32")


def run(queue, *keys):
    """Runs a program that offers one value for each key."""

    @millrace.compile
    def program(x):
        for number, key in enumerate(keys):
            queue.maybe_outfeed(key, x + number)
        told.append(queue.maybe_enqueue())
        return keras.ops.sum(x)

    told = []
    ipu.ipu_strategy.IPUStrategy().run(program, [X])
    return told[-1]


def test_f57_a_filter_is_a_part_of_the_key(system):
    system(1)
    queue = MaybeOutfeedQueue(filters=["ab"])
    assert not queue.enqueued
    assert queue.maybe_dequeue() is None
    assert run(queue, "ba") is None
    assert not queue.enqueued
    assert queue.maybe_dequeue() is None
    assert run(queue, "ba", "xaby")
    assert queue.enqueued
    actual = queue.maybe_dequeue()
    assert list(actual) == ["xaby"]
    np.testing.assert_array_equal(actual["xaby"], [X + 1])
    np.testing.assert_array_equal(actual["xaby"].numpy(), [X + 1])


def test_f57_all_that_was_offered_is_one_element_in_order(system):
    system(1)
    queue = MaybeOutfeedQueue(IPUOutfeedMode.LAST)
    for _ in range(2):
        run(queue, "z", "a")
    actual = queue.dequeue()
    assert list(actual) == ["z", "a"]
    np.testing.assert_array_equal(actual["a"], X + 1)
    with pytest.raises(ValueError, match=r"mode.*Received: 'sometimes'"):
        MaybeOutfeedQueue("sometimes")


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        (["None"], ["Dense_10", "Dense_128", "Conv"]),
        (["none"], ["Dense_10", "Dense_128", "Conv"]),
        (["Dense_1"], ["Dense_10", "Dense_128"]),
        (["dense_1"], []),
        (["none", "Conv"], ["Conv"]),
        ([], []),
    ],
)
def test_f62_filters_of_the_program(arguments, taken):
    tutorial = load("mnist_inspection")
    queue = MaybeOutfeedQueue(filters=tutorial.process_filters(arguments))
    assert [key for key in ("Dense_10", "Dense_128", "Conv") if queue.takes(key)] == taken


def test_f62_an_empty_list_of_filters_takes_nothing(system, capsys):
    system(1)
    queue = MaybeOutfeedQueue(filters=[])
    assert run(queue, "Dense_10") is None
    OutfeedCallback(queue, "All of it").on_epoch_end(0)
    assert capsys.readouterr().out == "\nAll of it\nNo data enqueued\n"
