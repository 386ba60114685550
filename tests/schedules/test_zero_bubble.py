import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules import zero_bubble as module
from millrace.run.schedules.check import check
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import grid, write
from millrace.run.schedules.zero_bubble import zero_bubble

pytestmark = pytest.mark.quick

SIZES = [(p, m) for p in range(1, 9) for m in range(1, 4 * p + 2)]


def test_reads_like_the_drawing():
    assert write(zero_bubble(2, 3)).splitlines() == [
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    ]
    for line in grid(zero_bubble(3, 5)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_takes_the_time_and_the_memory_it_promises(p, m):
    schedule = zero_bubble(p, m)
    check(schedule, p, m)
    timeline = simulate(schedule, UNIT_COST)
    whole = simulate(one_f_one_b(p, m), UNIT_COST)
    if m >= p:
        assert timeline.idle == (p - 1,) * p
        assert whole.idle == (3 * (p - 1),) * p
    else:
        assert timeline.end == 2 * (m + p) - 1  # shorter than 1F1B still, as m - 2 < p
    assert timeline.end <= whole.end
    assert max(timeline.in_flight) <= max(whole.in_flight) == min(m, p)
    assert zero_bubble(p, m) == schedule


def test_says_which_number_is_wrong():
    with pytest.raises(ScheduleError, match=r"Zero bubble needs.*num_micro_batches=0"):
        zero_bubble(4, 0)
