import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import millrace
from millrace.errors import OptionError, TapError
from millrace.programs.taps.maybe_outfeed import MaybeOutfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import collecting


def values_of(queue, program, *arguments):
    """What one call of a compiled program leaves in `queue`, as it is taken in."""
    _, tapped = jax.jit(collecting(program))(*arguments)
    if tapped:
        queue.expect()
        queue.receive(jax.tree.map(lambda leaf: np.asarray(leaf)[None], tapped[queue]), 1)
    return queue.maybe_dequeue()


def offer(queue, *keys):
    def program(x):
        for number, key in enumerate(keys):
            queue.maybe_outfeed(key, x + number)
        queue.maybe_enqueue()
        return x

    return program


@pytest.mark.parametrize(
    ("filters", "taken"),
    [
        (None, ["xaby", "ba", "Ab"]),
        (["ab"], ["xaby"]),
        ("ab", ["xaby"]),
        (("ba", "x"), ["xaby", "ba"]),
        (["Ab", "nowhere"], ["Ab"]),
        (re.compile("^b|y$"), ["xaby", "ba"]),
        (lambda key: len(key) == 2, ["ba", "Ab"]),
        ([re.compile("^x"), str.istitle], ["xaby", "Ab"]),
        ([], []),
        (["none"], []),  # no word of its own
    ],
)
def test_filters_choose_by_key(filters, taken):
    queue = MaybeOutfeedQueue(filters=filters)
    found = values_of(queue, offer(queue, "xaby", "ba", "Ab"), jnp.zeros(2))
    assert list(found or {}) == taken
    assert queue.enqueued == bool(taken)


def test_a_filter_is_part_of_a_key_and_tells_case():
    queue = MaybeOutfeedQueue(filters=["Dense_1"])
    names = ["Dense_10", "Dense_128", "dense_1", "Conv"]
    assert [name for name in names if queue.takes(name)] == ["Dense_10", "Dense_128"]


def test_nothing_was_enqueued_until_something_passed():
    queue = MaybeOutfeedQueue(filters=["ab"])
    assert not queue.enqueued
    assert queue.maybe_dequeue() is None
    assert queue.dequeue() == []
    assert values_of(queue, offer(queue, "ba"), jnp.zeros(2)) is None
    found = values_of(queue, offer(queue, "ba", "xaby"), jnp.zeros(2))
    np.testing.assert_array_equal(found["xaby"], [[1, 1]])
    assert queue.enqueued
    assert queue.maybe_dequeue()["xaby"].shape == (0, 2)


def test_what_there_is_to_enqueue_is_told():
    queue = MaybeOutfeedQueue(filters=["ab"])
    told = []

    def program(x):
        queue.maybe_outfeed("ba", x)
        told.append(queue.maybe_enqueue())
        queue.maybe_outfeed("ab", x)
        told.append(queue.maybe_enqueue())
        told.append(queue.maybe_enqueue())

    jax.make_jaxpr(collecting(program))(1.0)
    assert told == [False, True, False]


def test_keys_come_in_the_order_in_which_they_were_offered():
    queue = MaybeOutfeedQueue()
    found = values_of(queue, offer(queue, "z", "a", "m"), jnp.zeros(()))
    assert {key: float(value[0]) for key, value in found.items()} == {"z": 0, "a": 1, "m": 2}
    assert list(found) == ["z", "a", "m"]


def test_the_later_of_two_with_one_key_counts():
    queue = MaybeOutfeedQueue()
    found = values_of(queue, offer(queue, "a", "b", "a"), jnp.zeros(()))
    assert {key: float(value[0]) for key, value in found.items()} == {"a": 2, "b": 1}


def test_a_trace_that_ended_early_leaves_nothing_behind():
    queue = MaybeOutfeedQueue()

    def broken(x):
        queue.maybe_outfeed("lost", x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jax.jit(collecting(broken))(1.0)
    assert list(values_of(queue, offer(queue, "kept"), jnp.zeros(()))) == ["kept"]

    jax.make_jaxpr(lambda x: queue.maybe_outfeed("never enqueued", x))(1.0)
    found = values_of(queue, lambda x: queue.maybe_enqueue(), jnp.zeros(()))
    assert found["kept"].shape == (0,)


def test_a_program_may_be_traced_again():
    queue = MaybeOutfeedQueue()
    program = offer(queue, "a", "b")
    for size in (1, 2, 3):
        found = values_of(queue, program, jnp.zeros(size))
        assert {key: value.shape for key, value in found.items()} == {
            "a": (1, size),
            "b": (1, size),
        }


def test_one_dict_in_each_program():
    queue = MaybeOutfeedQueue()

    def twice(x):
        offer(queue, "a")(x)
        offer(queue, "b")(x)

    with pytest.raises(
        TapError, match="takes one value in each program, and received a second one"
    ):
        jax.make_jaxpr(collecting(twice))(1.0)


def test_outside_of_a_program():
    queue = MaybeOutfeedQueue()
    queue.maybe_outfeed("a", np.ones(2))
    with pytest.raises(TapError, match="no program is being traced"):
        queue.maybe_enqueue()
    assert not queue.enqueued
    assert not queue.maybe_enqueue()  # nothing is left


def test_filters_that_are_none():
    with pytest.raises(OptionError, match=r"Received: 3. Set filters=None to take all keys"):
        MaybeOutfeedQueue(filters=["a", 3])
    with pytest.raises(OptionError, match="mode must be one of"):
        MaybeOutfeedQueue("some")


def test_it_is_an_outfeed_queue():
    queue = MaybeOutfeedQueue("last", filters=["a"], max_bytes=100)
    assert isinstance(queue, OutfeedQueue)
    assert "mode='last' filters=['a']" in repr(queue)
    assert "filters" not in repr(MaybeOutfeedQueue())
    found = values_of(queue, offer(queue, "a"), jnp.zeros(2))
    assert found["a"].shape == (2,)


@pytest.mark.parametrize("mode", ["all", "last"])
def test_replicas_have_an_axis_of_their_own(mode):
    queue = MaybeOutfeedQueue(mode, filters=["number"])

    class Offer(keras.layers.Layer):
        def call(self, x):
            offer(queue, "number", "other")(x)
            return x

    with millrace.Strategy(devices=2).scope():
        model = keras.Sequential([Offer(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=4)
    model.fit(np.arange(32.0)[:, None], np.zeros((32, 1)), batch_size=2, shuffle=False, verbose=0)
    whole = np.arange(32.0).reshape(8, 2, 2, 1)  # rounds, replicas, rows
    np.testing.assert_array_equal(queue.dequeue()["number"], whole if mode == "all" else whole[-1])
