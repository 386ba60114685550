import pytest

from case_marks import slow
from millrace.errors import ScheduleError
from millrace.run.schedules import looped as module
from millrace.run.schedules.check import check
from millrace.run.schedules.looped import looped
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import grid, write

SIZES = [(p, v) for p in range(1, 9) for v in range(1, 5)]


def test_reads_like_the_drawing():
    assert write(looped(4, 4, 2)).splitlines() == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]
    for line in grid(looped(4, 2, 2)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize(("p", "v"), [slow(p, v) if p > 6 and v > 1 else (p, v) for p, v in SIZES])
def test_takes_the_time_and_the_memory_it_promises(p, v):
    for m in range(1, 4 * p + 2):
        schedule = looped(p * v, m, p)
        check(schedule, p * v, m)
        assert all(task.stage % p == row for row, tasks in enumerate(schedule) for task in tasks)
        timeline = simulate(schedule, UNIT_COST)
        # v * m slots of a forward and a backward, and those of the bubble
        textbook = (v * m + p - 1) * 3
        if m % p == 0:
            assert timeline.end == textbook
            assert timeline.peak_in_flight == tuple(
                min(v * m, 2 * (p - 1 - r) + (v - 1) * p + 1) for r in range(p)
            )
        elif m < p:  # a single window, which goes round as through p * v groups
            assert timeline.end == (p * v + m - 1) * 3
        else:  # Longer windows.
            assert textbook <= timeline.end <= 1.08 * textbook
        assert max(timeline.in_flight) <= m
        assert looped(p * v, m, p) == schedule


@pytest.mark.parametrize("p", [2, 3, 4])
def test_takes_stages_that_do_not_come_out_even(p):
    for num_stages in range(p, 4 * p):
        for m in range(1, 3 * p):
            schedule = looped(num_stages, m, p)
            check(schedule, num_stages, m)
            assert len(schedule) == p


def test_is_shorter_than_1f1b_on_the_same_devices():
    # Half as much work in each of 8 stages as in each of 4, on 4 device groups.
    halves = simulate(looped(8, 8, 4), lambda task: UNIT_COST[task.kind] / 2)
    whole = simulate(one_f_one_b(4, 8), UNIT_COST)
    assert (halves.end, whole.end) == (28.5, 33)
    assert (sum(halves.idle), sum(whole.idle)) == (18, 36)


def test_with_one_stage_per_group_is_1f1b_that_runs_ahead():
    assert looped(4, 8, 4) == one_f_one_b(4, 8, run_ahead=2)


def test_says_which_number_is_wrong():
    with pytest.raises(ScheduleError, match=r"Looped needs.*num_groups=0"):
        looped(4, 4, 0)
    with pytest.raises(
        ScheduleError, match=r"num_groups=6 .*num_stages=4.* 2 of them.*Use 4 groups or fewer"
    ):
        looped(4, 4, 6)
