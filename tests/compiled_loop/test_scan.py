import pytest

from millrace.compiled_loop.calls import best_unroll
from millrace.plan import LoopForm


@pytest.mark.parametrize(
    ("turns", "unroll", "calls"),
    [(1000, 8, 125), (100, 5, 20), (97, 8, 13), (10, 5, 2), (4, 4, 1), (1, 1, 1), (7, 7, 1)],
)
def test_the_unrolled_length_takes_the_fewest_calls(turns, unroll, calls):
    chosen = best_unroll(LoopForm(unroll=8), turns)
    assert chosen == unroll
    assert turns // chosen + turns % chosen == calls


def test_an_update_is_an_iteration():
    assert best_unroll(LoopForm(unroll=8), iterations=10, iteration_rounds=4) == 2
    assert best_unroll(LoopForm(unroll=8), iterations=10, iteration_rounds=16) == 1
