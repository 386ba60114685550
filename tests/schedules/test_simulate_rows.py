"""A simulation of arrays is that of the same tasks as objects, to the last bit."""

import itertools
import random
import time

import numpy as np
import pytest

from millrace.errors import ScheduleError
from millrace.schedules.positions import make_rows
from millrace.schedules.rows import rows_of
from millrace.schedules.simulate import simulate
from millrace.schedules.simulate_rows import simulate_rows
from millrace.schedules.table import SCHEDULES
from millrace.schedules.task import Pass
from millrace.schedules.text import parse

V = ("zb_v", "v_half", "v_min")
PROPERTIES = ("num_groups", "num_stages", "end", "busy", "idle", "bubble", "in_flight")


def random_costs(rng, stages, are_equal):
    if are_equal:
        return {kind: [rng.choice([0.0, 0.1, 1 / 3, 1.0, 2.0])] * stages for kind in Pass}
    return {kind: [rng.random() for _ in range(stages)] for kind in Pass}


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_times_are_those_of_simulate(name):
    rng = random.Random(name)
    for p, m in itertools.product((1, 2, 3, 4, 6), (1, 2, 3, 7, 12)):
        groups = rng.randint(1, p) if name == "looped" else p
        stages = 2 * p if name in V else p
        schedule = SCHEDULES[name](stages, m, *((groups,) if name == "looped" else ()))
        cost = random_costs(rng, stages, rng.random() < 0.5)
        transfer = rng.choice([0.0, 0.25, rng.random()])
        dispatch = rng.choice([0.0, 0.5, rng.random()])
        expected = simulate(
            schedule,
            lambda task, cost=cost: cost[task.kind][task.stage],
            transfer,
            dispatch=dispatch,
        )
        found = simulate_rows(make_rows(name, stages, m, groups), cost, transfer, dispatch)
        assert found.timeline == expected
        for each in (*PROPERTIES, "peak_in_flight"):
            assert getattr(found, each) == getattr(expected, each), each


def test_a_schedule_of_ones_own():
    schedule = parse("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 \n 2F0 2I0 2F1 2W0 2I1 2W1")
    cost = {kind: [1.0, 2.0, 3.0] for kind in Pass}
    found = simulate_rows(rows_of(schedule), cost, transfer=0.5)
    assert found.timeline == simulate(schedule, lambda t: cost[t.kind][t.stage], 0.5)


def test_rows_without_tasks():
    found = simulate_rows(rows_of(((), ())), {})
    assert (found.end, found.busy, found.bubble, found.in_flight) == (0.0, (0.0, 0.0), 0.0, ())


def test_says_which_cost_is_missing():
    with pytest.raises(
        ScheduleError, match=r"has 0I0, and `cost` has only Pass.FORWARD.* Pass.BACKWARD_INPUT to"
    ):
        simulate_rows(make_rows("zero_bubble", 1, 1, 1), {Pass.FORWARD: [1.0]})


def test_says_where_a_schedule_stops():
    rows = rows_of(parse("0F0 0B0 \n 1B0 1F0"))
    with pytest.raises(
        ScheduleError,
        match=r"stops after 1 of 4 tasks: row 0 at 0B0; row 1 at 1B0\. Check fewer micro-batches",
    ):
        simulate_rows(rows, {kind: [1.0] * 2 for kind in Pass})
    rows = rows_of(tuple(parse(f"{s}B0 {s}F0")[0] for s in range(9)))
    with pytest.raises(ScheduleError, match="row 3 at 3B0; and 5 others"):
        simulate_rows(rows, {kind: [1.0] * 9 for kind in Pass})


def test_progress_comes_to_few_tasks_before_the_end():
    seen = []
    rows = make_rows("1f1b", 2, 600, 2)
    simulate_rows(rows, {kind: [1.0] * 2 for kind in Pass}, progress=lambda *n: seen.append(n))
    assert [total for _, total in seen] == [2400] * 4
    assert sorted(done for done, _ in seen) == [done for done, _ in seen]
    assert 1500 < seen[-1][0] <= 2400


@pytest.mark.slow
def test_a_thousand_stages_take_seconds():
    cost = {Pass.FORWARD: [1.0] * 1024, Pass.BACKWARD: [2.0] * 1024}
    begin = time.process_time()
    timeline = simulate_rows(make_rows("1f1b", 1024, 4096, 1024), cost)
    assert timeline.end == (4096 + 1023) * 3
    assert timeline.in_flight == tuple(range(1024, 0, -1))
    assert np.isclose(timeline.bubble, 1023 / 5119)
    assert time.process_time() - begin < 20
