import pytest

from millrace.run.schedules import v_min as module
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import grid, write
from millrace.run.schedules.v_min import v_min


def test_reads_like_the_drawing():
    assert write(v_min(4, 2)).splitlines() == [
        "0F0 3F0 3I0 0F1 3W0 0I0 0W0 3F1 3I1 3W1 0I1 0W1",
        "1F0 2F0 2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 2W1 1W1",
    ]
    for line in grid(v_min(4, 3)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize("p", range(2, 17))
def test_two_thirds_of_the_bubble_of_1f1b(p):
    """Published: 2 p / 3 of a micro-batch's time, where 1F1B has p."""
    for m in (1, 2, p, 2 * p + 1):
        timeline = simulate(v_min(2 * p, m), UNIT_COST)
        assert timeline.idle == (4 * p - 5,) * p
        whole = simulate(one_f_one_b(p, m), UNIT_COST)  # of stages twice as long
        assert timeline.idle[0] < 2 * whole.idle[0] * 2 / 3


def test_holds_a_third_of_1f1b():
    for p in (4, 7, 16, 31):
        found = max(simulate(v_min(2 * p, 2 * p), UNIT_COST).peak_in_flight)
        # halves of the sets of 1F1B, of which its first group holds p
        assert found <= 2 * p / 3 + 8 / 3
