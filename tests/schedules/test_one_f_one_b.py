import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules import one_f_one_b as module
from millrace.run.schedules.check import check
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.task import Pass
from millrace.run.schedules.text import grid

pytestmark = pytest.mark.quick

COST = {Pass.FORWARD: 1, Pass.BACKWARD: 2}
SIZES = [(p, m) for p in range(1, 9) for m in range(1, 4 * p + 2)]


def test_reads_like_the_drawing():
    assert [" ".join(map(str, row)) for row in one_f_one_b(3, 5)] == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0F4 0B2 0B3 0B4",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1F4 1B3 1B4",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4",
    ]
    for schedule in (one_f_one_b(3, 5), one_f_one_b(3, 5, slack=1)):
        for line in grid(schedule).splitlines():
            assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize("run_ahead", [1, 2])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_takes_the_time_and_the_memory_it_promises(p, m, run_ahead):
    schedule = one_f_one_b(p, m, run_ahead)
    check(schedule, p, m)
    timeline = simulate(schedule, COST)
    assert timeline.end == (m + p - 1) * 3  # the textbook bubble: p - 1 slots
    assert timeline.in_flight == tuple(min(m, run_ahead * (p - 1 - s) + 1) for s in range(p))
    assert one_f_one_b(p, m, run_ahead) == schedule


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_slack_takes_no_time_and_one_more_micro_batch(p, m):
    schedule = one_f_one_b(p, m, slack=1)
    check(schedule, p, m)
    timeline = simulate(schedule, COST)
    assert timeline.end == (m + p - 1) * 3
    assert timeline.in_flight == tuple(min(m, p - s + (s < p - 1)) for s in range(p))


@pytest.mark.parametrize("m", [4, 16, 32])
@pytest.mark.parametrize("transfer", [0.125, 0.25, 0.5])
def test_slack_hides_the_transfers_between_two_stages(m, transfer):
    free = simulate(one_f_one_b(2, m), COST).end
    assert simulate(one_f_one_b(2, m), COST, transfer).end == free + m * transfer
    # Only those of the first forward and of the last backward are left.
    assert simulate(one_f_one_b(2, m, slack=1), COST, transfer).end == free + 2 * transfer


def test_slack_hides_some_of_the_transfers_between_many_stages():
    times = [simulate(one_f_one_b(8, 32, slack=slack), COST, 0.5).end for slack in (0, 1)]
    assert times == [151, 146]


def test_running_ahead_hides_transfers():
    times = [simulate(one_f_one_b(8, 32, run_ahead), COST, 0.5).end for run_ahead in (1, 2)]
    assert times == [151, 124]


def test_says_which_number_is_wrong_and_where_it_is_set():
    with pytest.raises(ScheduleError, match=r"num_micro_batches=0.*gradient_accumulation_steps"):
        one_f_one_b(num_stages=4, num_micro_batches=0)
    with pytest.raises(ScheduleError, match=r"1F1B needs.*run_ahead=0"):
        one_f_one_b(num_stages=4, num_micro_batches=4, run_ahead=0)
