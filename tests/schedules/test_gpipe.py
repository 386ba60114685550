import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules import gpipe as module
from millrace.run.schedules.check import check
from millrace.run.schedules.gpipe import gpipe
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import grid, write

pytestmark = pytest.mark.quick

SIZES = [(p, m) for p in range(1, 9) for m in range(1, 4 * p + 2)]


def test_reads_like_the_drawing():
    assert write(gpipe(2, 3)) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2"
    for line in grid(gpipe(3, 4)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_takes_the_time_and_the_memory_it_promises(p, m):
    schedule = gpipe(p, m)
    check(schedule, p, m)
    timeline = simulate(schedule, UNIT_COST)
    assert timeline.end == (m + p - 1) * 3
    assert timeline.in_flight == timeline.peak_in_flight == (m,) * p
    assert gpipe(p, m) == schedule


def test_says_which_number_is_wrong():
    with pytest.raises(ScheduleError, match=r"GPipe needs.*num_micro_batches=0"):
        gpipe(4, 0)
