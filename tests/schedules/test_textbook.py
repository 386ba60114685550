import pytest

from millrace.schedules.simulate import simulate
from millrace.schedules.table import SCHEDULES, make_schedule
from millrace.schedules.task import Pass
from millrace.schedules.textbook import textbook_bubble


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("p", range(1, 9))
def test_simulation_agrees(name, p):
    for v in (1, 2, 3, 4) if name == "looped" else (1,):
        for m in range(1, 4 * p + 2):
            groups = tuple(stage % p for stage in range(p * v))
            schedule = make_schedule(name, p * v, m, groups)
            for forward, backward in ((1.0, 2.0), (2.0, 3.0), (1.0, 3.0)):
                half = backward / 2
                cost = dict(zip(Pass, (forward, backward, half, half), strict=True))
                formula = textbook_bubble(name, p * v, m, p, forward, backward)
                if formula is not None:
                    assert simulate(schedule, cost).bubble == pytest.approx(formula)


def test_is_silent_where_there_is_no_formula():
    assert textbook_bubble("looped", 5, 4, 2) is None
    assert textbook_bubble("looped", 4, 3, 2) is None
    assert textbook_bubble("zero_bubble", 4, 3, 4) is None
    assert textbook_bubble("zero_bubble", 4, 8, 4, forward=1, backward=3) is None
    assert textbook_bubble("my_schedule.txt", 4, 8, 4) is None


def test_numbers_of_the_papers():
    assert textbook_bubble("1f1b", 4, 8, 4) == 3 / 11
    assert textbook_bubble("looped", 16, 8, 4) == 3 / 35
    assert textbook_bubble("zero_bubble", 4, 8, 4) == 3 / 27
    assert textbook_bubble("sequential", 4, 8, 4) == 3 / 4
