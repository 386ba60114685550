import pytest

from millrace.run.schedules import v_half as module
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import grid, write
from millrace.run.schedules.v_half import v_half


def test_reads_like_the_drawing():
    assert write(v_half(4, 2)).splitlines() == [
        "0F0 3F0 0F1 3I0 3W0 3F1 0I0 3I1 3W1 0W0 0I1 0W1",
        "1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 2I1 1I1 2W1 1W1",
    ]
    for line in grid(v_half(4, 3)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize("p", range(2, 17))
def test_half_of_the_bubble_of_1f1b(p):
    """Published: p / 2 of a micro-batch's time, where 1F1B has p."""
    for m in (p // 2 + 1, p, 2 * p, 3 * p + 1):
        timeline = simulate(v_half(2 * p, m), UNIT_COST)
        assert timeline.idle == (3 * (p - 1) - p % 2,) * p
        whole = simulate(one_f_one_b(p, m), UNIT_COST)  # of stages twice as long
        assert timeline.idle[0] <= 2 * whole.idle[0] / 2


def test_holds_half_of_1f1b():
    for p in (4, 8, 16, 32):
        found = max(simulate(v_half(2 * p, 2 * p), UNIT_COST).peak_in_flight)
        assert found == p + 2  # halves of the sets of 1F1B, of which its first group holds p
