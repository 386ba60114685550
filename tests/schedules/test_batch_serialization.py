import pathlib

import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules import sequential as module
from millrace.run.schedules.check import check
from millrace.run.schedules.sequential import batch_serialized, sequential
from millrace.run.schedules.simulate import UNIT_COST, merged, simulate
from millrace.run.schedules.task import Pass
from millrace.run.schedules.text import grid, parse, write

SIZES = [(p, m, k) for p in range(1, 6) for m in range(1, 12) for k in (1, 2, 3, 5, 12)]


def test_reads_like_the_drawing():
    assert write(batch_serialized(2, 3, 2)) == (
        "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1 0F2 1F2 1B2 0B2"  # the third is left for a turn alone
    )
    page = pathlib.Path(__file__).parents[2] / "docs" / "schedules.md"
    for text in (module.__doc__, page.read_text()):
        assert f"    {grid(batch_serialized(2, 3, 2))}\n" in text


@pytest.mark.parametrize(("p", "m", "k"), SIZES)
def test_takes_the_time_and_the_memory_it_promises(p, m, k):
    schedule = batch_serialized(p, m, k)
    check(schedule, p, m)
    assert parse(write(schedule)) == schedule
    timeline = simulate(schedule, UNIT_COST)
    assert (timeline.end, timeline.bubble) == (m * p * 3, 0)
    assert timeline.in_flight == (min(m, k),) * p
    assert timeline.peak_in_flight == (p * min(m, k),)


@pytest.mark.parametrize(("p", "m", "k"), SIZES[::7])
def test_is_dispatched_in_the_order_of_its_row(p, m, k):
    schedule = batch_serialized(p, m, k)
    assert merged(schedule) == schedule[0]
    assert {task.kind for task in schedule[0]} == {Pass.FORWARD, Pass.BACKWARD}


@pytest.mark.parametrize(("p", "m"), [(1, 4), (3, 4), (4, 9)])
def test_one_at_a_time_is_sequential(p, m):
    assert batch_serialized(p, m, 1)[0] == merged(sequential(p, m))


def test_says_which_number_is_wrong():
    with pytest.raises(ScheduleError, match=r"Sequential needs.*batch_serialization=0"):
        batch_serialized(2, 4, 0)
