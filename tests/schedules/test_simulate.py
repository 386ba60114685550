import itertools

import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.looped import looped
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.sequential import sequential
from millrace.run.schedules.simulate import UNIT_COST, merged, simulate
from millrace.run.schedules.task import Pass
from millrace.run.schedules.text import parse
from millrace.run.schedules.zero_bubble import zero_bubble

pytestmark = pytest.mark.quick

CASES = [one_f_one_b(4, 9), zero_bubble(5, 7), looped(12, 10, 4), sequential(3, 3)]


def times(timeline):
    return {str(span): (span.start, span.end) for span in timeline.spans}


def test_reads_like_the_drawing():
    assert times(simulate(one_f_one_b(2, 2), UNIT_COST)) == {
        "0F0": (0, 1),
        "0F1": (1, 2),
        "1F0": (1, 2),
        "1B0": (2, 4),
        "1F1": (4, 5),
        "0B0": (4, 6),
        "1B1": (5, 7),
        "0B1": (7, 9),
    }


def test_transfers_take_time_between_groups_only():
    cost = {Pass.FORWARD: 1, Pass.BACKWARD: 2}
    found = times(simulate(parse("0F0 1F0 1B0 0B0"), cost, transfer=10))
    assert found["0B0"] == (4, 6)
    found = times(simulate(parse("0F0 0B0 \n 1F0 1B0"), cost, transfer=10))
    assert found["1F0"] == (11, 12)
    assert found["0B0"] == (24, 26)


def test_a_group_works_while_its_results_travel():
    found = times(simulate(parse("0F0 0F1 0B0 0B1 \n 1F0 1B0 1F1 1B1"), UNIT_COST, transfer=0.5))
    assert found["0F1"] == (1, 2)
    assert found["1F0"] == (1.5, 2.5)


def test_costs_may_differ_from_task_to_task():
    timeline = simulate(one_f_one_b(2, 2), lambda task: 1.0 + task.stage)
    assert times(timeline)["1F0"] == (1, 3)
    assert timeline.busy == (4, 8)


def test_says_which_cost_is_missing():
    with pytest.raises(
        ScheduleError, match=r"has 0I0, and `cost` has only Pass.FORWARD.* Pass.BACKWARD_INPUT to"
    ):
        simulate(zero_bubble(1, 1), {Pass.FORWARD: 1.0})


@pytest.mark.parametrize("schedule", CASES)
@pytest.mark.parametrize("transfer", [0.0, 0.75])
def test_no_task_starts_before_what_it_waits_for(schedule, transfer):
    timeline = simulate(schedule, lambda t: 1 + (7 * t.stage + 3 * t.micro_batch) % 5, transfer)
    found = {str(span): span for span in timeline.spans}
    assert len(found) == len(timeline.spans) == sum(map(len, schedule))
    for task, others in dependencies(schedule).items():
        span = found[str(task)]
        for other in (found[str(other)] for other in others):
            delay = transfer if other.group != span.group else 0.0
            assert other.end + delay <= span.start
    for row, tasks in enumerate(schedule):
        spans = [found[str(task)] for task in tasks]
        assert all(span.group == row for span in spans)
        assert all(a.end <= b.start for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("schedule", CASES)
def test_merged_keeps_rows_and_dependencies_in_order(schedule):
    order = merged(schedule)
    place = {task: number for number, task in enumerate(order)}
    assert len(place) == len(order) == sum(map(len, schedule))
    waits = dependencies(schedule)
    assert all(place[other] < place[task] for task in order for other in waits[task])
    for row in schedule:
        assert sorted(row, key=place.__getitem__) == list(row)


def test_merged_reads_like_the_drawing():
    assert " ".join(map(str, merged(one_f_one_b(2, 2)))) == "0F0 0F1 1F0 1B0 0B0 1F1 1B1 0B1"
