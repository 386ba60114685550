import pickle

import pytest

from millrace.run.schedules.concurrent import concurrent
from millrace.run.schedules.simulate import merged, simulate
from millrace.run.schedules.table import make_schedule
from millrace.run.schedules.task import Pass

COST = {Pass.FORWARD: 1, Pass.BACKWARD: 2}
LEVELS = (0, 1, 1, 2)


def test_stages_of_one_level_get_the_same_row():
    schedule = make_schedule("1f1b", 3, 2, (0, 1, 2), levels=LEVELS)
    assert [" ".join(map(str, row)) for row in schedule] == [
        "0F0 0F1 0B0 0B1",
        "1F0 1F1 1B0 1B1",
        "2F0 2F1 2B0 2B1",
        "3F0 3B0 3F1 3B1",
    ]


def test_one_stage_on_each_level_is_the_schedule_itself():
    schedule = make_schedule("1f1b", 3, 4, (0, 1, 2))
    assert concurrent(schedule, (0, 1, 2)) is schedule


@pytest.mark.parametrize("name", ["1f1b", "grouped", "gpipe", "sequential", "zero_bubble"])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_takes_the_time_and_holds_what_the_shorter_pipeline_does(name, m):
    cost = {**COST, Pass.BACKWARD_INPUT: 1, Pass.BACKWARD_WEIGHT: 1}
    short = simulate(make_schedule(name, 3, m, (0, 1, 2)), cost)
    wide = simulate(make_schedule(name, 3, m, (0, 1, 2), levels=LEVELS), cost)
    assert wide.end == short.end
    assert wide.in_flight == tuple(short.in_flight[level] for level in LEVELS)


def test_saves_a_stage_of_time_over_the_serial_pipeline():
    serial = simulate(make_schedule("1f1b", 4, 8, (0, 1, 2, 3)), COST)
    wide = simulate(make_schedule("1f1b", 3, 8, (0, 1, 2), levels=LEVELS), COST)
    assert (serial.end, wide.end) == ((8 + 3) * 3, (8 + 2) * 3)


def test_a_task_waits_for_all_stages_of_the_level_before():
    schedule = make_schedule("gpipe", 3, 1, (0, 1, 2), levels=LEVELS)

    def cost(task):  # stage 2 is slow: stage 3 waits for it, and stage 1 does not
        return 5 if (task.stage, task.kind) == (2, Pass.FORWARD) else 1

    spans = {(s.stage, s.kind): s.start for s in simulate(schedule, cost).spans}
    assert spans[1, "F"] == spans[2, "F"] == 1
    assert spans[3, "F"] == 6


def test_stages_of_one_row_come_one_after_the_other():
    schedule = make_schedule("sequential", 3, 2, (0, 0, 0), batch_serialization=2, levels=LEVELS)
    (row,) = schedule
    assert " ".join(map(str, row)).startswith("0F0 0F1 1F0 2F0 1F1 2F1 3F0 3F1 3B0")


def test_keeps_its_levels_when_pickled():
    schedule = make_schedule("1f1b", 3, 2, (0, 1, 2), levels=LEVELS)
    again = pickle.loads(pickle.dumps(schedule))
    assert merged(again) == merged(schedule)
    assert again.levels == LEVELS
