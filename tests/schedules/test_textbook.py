import itertools

import pytest

from case_marks import slow
from millrace.base.options.default_devices import V_SHAPED, default_devices, is_v_shaped
from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.table import SCHEDULES, make_schedule
from millrace.run.schedules.task import Pass
from millrace.run.schedules.textbook import textbook_bubble


def sizes():
    """Slow are seven groups and more, and five and six with several stages each."""
    for p, name in itertools.product(range(1, 9), SCHEDULES):
        has_several = name == "looped" or is_v_shaped(name)
        is_slow = p > 6 or (p > 4 and has_several)
        # Without a formula there is nothing to compare.
        yield slow(p, name) if is_slow and name != "1f1b_slack" else (p, name)


@pytest.mark.parametrize(("p", "name"), list(sizes()))
def test_simulation_agrees(name, p):
    for v in {"looped": (1, 2, 3, 4)}.get(name, (2,) if is_v_shaped(name) else (1,)):
        for m in range(1, 4 * p + 2):
            groups = default_devices(name, p * v)
            if name == "looped":
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
    assert textbook_bubble("zb_v", 8, 3, 4) is None
    assert textbook_bubble("v_half", 8, 2, 4) is None
    assert textbook_bubble("v_min", 8, 8, 4, forward=1, backward=3) is None
    assert textbook_bubble("v_min", 8, 8, 8) is None


def test_numbers_of_the_papers():
    assert textbook_bubble("1f1b", 4, 8, 4) == 3 / 11
    assert textbook_bubble("looped", 16, 8, 4) == 3 / 35
    assert textbook_bubble("zero_bubble", 4, 8, 4) == 3 / 27
    assert textbook_bubble("sequential", 4, 8, 4) == 3 / 4
    assert textbook_bubble("zb_v", 8, 8, 4) == 3 / 51
    assert textbook_bubble("v_half", 8, 8, 4) == 9 / 57
    assert textbook_bubble("v_half", 6, 8, 3, forward=2, backward=4) == 5 / 53
    assert textbook_bubble("v_min", 8, 8, 4) == 11 / 59
    assert [textbook_bubble(name, 2, 8, 1) for name in V_SHAPED] == [0, 0, 0]
