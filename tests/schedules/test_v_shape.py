"""The promises that the V-shaped schedules share; each has a file for its own."""

import random
import time

import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules.check import check
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.v_half import v_half
from millrace.run.schedules.v_min import v_min
from millrace.run.schedules.v_shape import Pattern, check_v_groups, repeated
from millrace.run.schedules.zb_v import zb_v

# Published: activations as micro-batches of 1F1B, which are two sets here.
MEMORY = {
    zb_v: lambda p: p,
    v_half: lambda p: (p + 2) // 2,
    v_min: lambda p: (p + 4) // 3,
}


def sizes(number):
    return [(p, m) for p in range(1, number) for m in {*range(1, 2 * p + 2), 3 * p, 4 * p + 1}]


@pytest.mark.parametrize("make", MEMORY)
def test_any_number_of_micro_batches_within_the_published_memory(make):
    for p, m in sizes(7):
        schedule = make(2 * p, m)
        check(schedule, 2 * p, m)
        assert [{min(t.stage, 2 * p - 1 - t.stage) for t in row} for row in schedule] == [
            {group} for group in range(p)
        ]
        timeline = simulate(schedule, UNIT_COST)
        assert max(timeline.peak_in_flight) <= min(2 * MEMORY[make](p), 2 * m)
        assert max(timeline.in_flight) <= m
        # 1F1B on the same devices: half as many stages, each twice as long
        assert timeline.end <= 2 * simulate(one_f_one_b(p, m), UNIT_COST).end
        assert make(2 * p, m) == schedule


@pytest.mark.slow
@pytest.mark.parametrize("make", MEMORY)
@pytest.mark.parametrize("p", [*range(7, 17), 23, 24, 25, 64])
def test_the_memory_of_many_groups(make, p):
    for m in {1, 2, p // 3, p - 1, p, p + 1, 2 * p - 1, 2 * p, 3 * p}:
        schedule = make(2 * p, m)
        check(schedule, 2 * p, m)
        assert max(simulate(schedule, UNIT_COST).peak_in_flight) <= 2 * MEMORY[make](p)


@pytest.mark.parametrize("make", MEMORY)
def test_the_memory_does_not_depend_on_times(make):
    """A set is counted in the order of a group's tasks, which is the schedule."""
    rng = random.Random(0)
    for p, m in ((2, 5), (3, 7), (5, 12)):
        costs = {}

        def cost(task, costs=costs):
            return costs.setdefault(task, rng.uniform(0.1, 3.0))

        timeline = simulate(make(2 * p, m), cost, transfer=0.7)
        assert max(timeline.peak_in_flight) <= 2 * MEMORY[make](p)


@pytest.mark.parametrize("make", MEMORY)
def test_all_groups_hold_about_the_same(make):
    for p in range(2, 9):
        peaks = simulate(make(2 * p, 4 * p), UNIT_COST).peak_in_flight
        assert max(peaks) - min(peaks) <= 2
        assert max(peaks) == 2 * MEMORY[make](p)


def test_less_memory_takes_more_time():
    for p in (4, 8):
        found = [simulate(make(2 * p, 4 * p), UNIT_COST) for make in MEMORY]
        ends, peaks = zip(*((each.end, max(each.peak_in_flight)) for each in found), strict=True)
        assert list(ends) == sorted(set(ends))
        assert list(peaks) == sorted(set(peaks), reverse=True)


def test_transfers_take_the_time_that_the_docs_say():
    half = {kind: cost / 2 for kind, cost in UNIT_COST.items()}
    ends = [
        tuple(simulate(make(16, 32), half, transfer).end for transfer in (0.0, 0.5))
        for make in MEMORY
    ]
    assert ends == [(99.5, 120.5), (106.5, 154.5), (109.5, 203.5)]


@pytest.mark.parametrize(
    "make", [v_half, *(pytest.param(make, marks=pytest.mark.slow) for make in (zb_v, v_min))]
)
def test_a_large_pipeline_takes_seconds(make):
    began = time.process_time()
    schedule = make(128, 512)
    assert time.process_time() - began < 10
    assert sum(map(len, schedule)) == 64 * 6 * 512


@pytest.mark.parametrize(("make", "name"), [(zb_v, "ZB-V"), (v_half, "V-Half"), (v_min, "V-Min")])
def test_says_which_number_is_wrong(make, name):
    with pytest.raises(ScheduleError, match=rf"{name} needs.*num_micro_batches=0"):
        make(4, 0)
    with pytest.raises(ScheduleError, match=rf"{name} needs.*num_stages=0"):
        make(0, 4)
    with pytest.raises(
        ScheduleError,
        match=rf"{name} has two stages on each device group. Received: num_stages=5. Assign 4 or "
        r"6 stages. The device_mapping of 6 is \[0, 1, 2, 2, 1, 0\]",
    ):
        make(5, 4)
    with pytest.raises(ScheduleError, match=r"num_stages=1. Assign 2 stages.*\[0, 0\]"):
        make(1, 4)


@pytest.mark.parametrize("groups", [(0, 1, 1, 0), (1, 0, 0, 1), (5, 3, 3, 5), (7, 7), (0,) * 2])
def test_groups_may_have_any_numbers(groups):
    check_v_groups("zb_v", groups, len(groups))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ((0, 1, 0, 1), [0, 1, 1, 0]),
        ((0, 0, 1, 1), [0, 1, 1, 0]),
        ((0, 0, 0, 0), [0, 1, 1, 0]),
        ((0, 1, 2, 3), [0, 1, 1, 0]),
        ((0, 1), [0, 0]),
        ((0, 1, 1, 0), [0, 1, 2, 2, 1, 0]),
    ],
)
def test_other_groups_are_refused_with_the_mapping_to_set(groups, expected):
    with pytest.raises(ScheduleError) as error:
        check_v_groups("v_half", groups, len(expected))
    assert "The schedule v_half" in str(error.value)
    assert f"device groups {list(groups)} for {len(expected)} stages" in str(error.value)
    assert str(error.value).endswith(f"Set device_mapping={expected}.")


def test_a_pattern_of_the_simplest_steps_is_one_diagonal():
    pattern = Pattern(steps=(1, 1, 1, 1), ends=(1, 1, 1))
    assert pattern.starts(3) == [(0, 5, 6, 11), (1, 4, 7, 10), (2, 3, 8, 9)]
    pattern = Pattern(steps=(1, 2, 1, 2), ends=(2, 4, 1))
    assert pattern.starts(2) == [(0, 5, 9, 13), (1, 3, 10, 11)]


def test_weights_wait_until_a_group_would_be_idle_or_is_full():
    pattern = Pattern(steps=(1, 1, 1, 1), ends=(1, 1, 1))
    (row,) = repeated(pattern, 1, 2, max_sets=100)
    assert " ".join(map(str, row)) == "0F0 1F0 1I0 0I0 0F1 1F1 1I1 0I1 1W0 1W1 0W0 0W1"
    (row,) = repeated(pattern, 1, 2, max_sets=2)
    assert " ".join(map(str, row)) == "0F0 1F0 1I0 0I0 1W0 0F1 0W0 1F1 1I1 0I1 1W1 0W1"


def test_too_little_memory_for_a_pattern():
    pattern = Pattern(steps=(1, 1, 1, 1), ends=(1, 1, 1))
    assert repeated(pattern, 4, 4, max_sets=4)
    with pytest.raises(ScheduleError, match=r"max_sets=3 is less.* on 4 device groups.*more"):
        repeated(pattern, 4, 4, max_sets=3)
