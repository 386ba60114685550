import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules import sequential as module
from millrace.run.schedules.check import check
from millrace.run.schedules.sequential import sequential
from millrace.run.schedules.simulate import UNIT_COST, merged, simulate
from millrace.run.schedules.text import grid, write

SIZES = [(p, m) for p in range(1, 9) for m in range(1, 4 * p + 2)]


def test_reads_like_the_drawing():
    assert write(sequential(2, 3)) == "0F0 0B0 0F1 0B1 0F2 0B2\n1F0 1B0 1F1 1B1 1F2 1B2"
    for line in grid(sequential(3, 2)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_takes_the_time_and_the_memory_it_promises(p, m):
    schedule = sequential(p, m)
    check(schedule, p, m)
    timeline = simulate(schedule, UNIT_COST)
    assert timeline.end == m * p * 3
    assert timeline.in_flight == (1,) * p
    assert sequential(p, m) == schedule


@pytest.mark.parametrize(("p", "m"), SIZES[::5])
def test_no_micro_batch_begins_before_the_one_before_it_has_ended(p, m):
    micro_batches = [task.micro_batch for task in merged(sequential(p, m))]
    assert micro_batches == sorted(micro_batches)


def test_says_which_number_is_wrong():
    with pytest.raises(ScheduleError, match=r"Sequential needs.*num_stages=0"):
        sequential(0, 4)
