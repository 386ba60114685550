import jax
import jax.numpy as jnp
import pytest

from millrace.taps.entries import MAX_BYTES, max_tapped_steps
from millrace.taps.taps import Tapped


@pytest.mark.parametrize(
    ("nbytes", "records", "window", "steps"),
    [
        (64, 100, 3, 99),  # all updates of the execution that are whole
        (64, 2, 3, 3),
        (MAX_BYTES // 10, 100, 4, 8),
        (MAX_BYTES * 2, 100, 4, 4),  # an update is not divided, whatever it taps
        (0, 100, 3, 100),
    ],
)
def test_a_call_has_room_for_the_taps_of_whole_updates(nbytes, records, window, steps):
    tapped = Tapped(("rows",), (jax.ShapeDtypeStruct((nbytes // 4,), jnp.float32),))
    assert max_tapped_steps(tapped, records, window) == steps
