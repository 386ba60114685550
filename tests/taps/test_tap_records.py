import jax
import jax.numpy as jnp
import pytest

from millrace.programs.taps.entries import MAX_BYTES, empty_entries, max_tapped_steps
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.programs.taps.taps import Tapped


def tapped_bytes(nbytes, key="rows"):
    return Tapped((key,), (jax.ShapeDtypeStruct((nbytes // 4,), jnp.float32),))


@pytest.mark.parametrize(
    ("step", "update", "records", "size", "steps"),
    [
        (64, 0, 100, 3, 99),  # all updates of the execution that are whole
        (64, 0, 2, 3, 3),
        (MAX_BYTES // 10, 0, 100, 4, 8),
        (MAX_BYTES * 2, 0, 100, 4, 4),  # an update is not divided, whatever it taps
        (0, 0, 100, 3, 100),
        (0, MAX_BYTES // 5, 2000, 1, 5),  # as gradients before they are applied
        (0, MAX_BYTES // 5, 2000, 4, 20),
        (0, MAX_BYTES * 100, 2000, 4, 4),
        (MAX_BYTES // 16, MAX_BYTES // 4, 100, 4, 8),
        (MAX_BYTES // 8, MAX_BYTES // 2, 100, 4, 4),
    ],
)
def test_a_call_has_room_for_the_taps_of_whole_updates(step, update, records, size, steps):
    taps = tapped_bytes(step), tapped_bytes(update)
    assert max_tapped_steps(*taps, records, size) == steps


def test_a_queue_that_keeps_the_newest_has_one_entry_in_a_call_of_any_length():
    last, every = OutfeedQueue("last"), OutfeedQueue()
    taps = tapped_bytes(MAX_BYTES, last)
    assert max_tapped_steps(taps, taps, 2000, 4) == 2000
    both = Tapped((last, every), (jax.ShapeDtypeStruct((3,), jnp.float32),) * 2)
    assert [value.shape for value in empty_entries(both, 8).values] == [(1, 3), (8, 3)]
    assert [value.shape for value in empty_entries(both, 2).values] == [(1, 3), (2, 3)]
