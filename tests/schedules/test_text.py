import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules import text as module
from millrace.run.schedules.gpipe import gpipe
from millrace.run.schedules.looped import looped
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.task import Pass, Task
from millrace.run.schedules.text import grid, parse, write
from millrace.run.schedules.zero_bubble import zero_bubble

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("p", range(1, 9))
def test_what_is_written_parses_back(p):
    for m in (1, p, 12):
        for schedule in (gpipe(p, m), one_f_one_b(p, m), zero_bubble(p, m), looped(3 * p, m, p)):
            assert parse(write(schedule)) == schedule


def test_comments_commas_and_empty_lines():
    text = """
    # forwards first

    0F0 0F1 0B0 0B1   # stage 0
    1F0,1B0, 1F1,1B1
    """
    assert write(parse(text)) == "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1"
    assert parse("# nothing") == ()


def test_names_the_line_and_the_word():
    with pytest.raises(ScheduleError, match=r"^Line 3 of the schedule: '1X0' is no task\. .*2F0"):
        parse("0F0 0B0\n# stage 1\n1F0 1X0")


def test_draws_time_from_left_to_right():
    assert grid(one_f_one_b(3, 5)).splitlines() == [
        "stage 0 |F0 F1 F2             B0--- F3 B1--- F4 B2---    B3---    B4---",
        "stage 1 |   F0 F1       B0--- F2 B1--- F3 B2--- F4 B3---    B4---",
        "stage 2 |      F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4---",
    ]


def test_marks_a_task():
    marked = grid(one_f_one_b(2, 2), Task(1, Pass.BACKWARD, 0)).splitlines()
    assert marked == [
        "stage 0 |F0 F1       B0---    B1---",
        "stage 1 |   F0 >1B0< F1 B1---",
    ]
    for line in marked:
        assert f"{line}\n" in module.__doc__


def test_makes_room_for_a_mark_in_a_short_task():
    assert grid(one_f_one_b(2, 2), Task(0, Pass.FORWARD, 1)).splitlines() == [
        "stage 0 |F0 >0F1<       B0---    B1---",
        "stage 1 |   F0--- B0--- F1 B1---",
    ]


def test_a_mark_that_is_not_there_marks_nothing():
    assert grid(gpipe(2, 2), Task(7, Pass.FORWARD, 0)) == grid(gpipe(2, 2))


def test_groups_of_several_stages_say_which():
    assert grid(looped(4, 2, 2)).splitlines() == [
        "group 0 |0F0 0F1 2F0 2F1         2B0----     2B1---- 0B0---- 0B1----",
        "group 1 |    1F0 1F1 3F0 3B0---- 3F1 3B1---- 1B0---- 1B1----",
    ]


def test_draws_a_timeline_with_its_gaps():
    timeline = simulate(one_f_one_b(2, 1), UNIT_COST, transfer=1.0)
    assert grid(timeline).splitlines() == [
        "stage 0 |F0                B0---",
        "stage 1 |      F0 B0---",
    ]


def test_sixteen_micro_batches_stay_readable():
    task = Task(1, Pass.BACKWARD, 12)
    assert grid(one_f_one_b(4, 16), task, width=90).splitlines() == [
        "stage 0 |F0- F1- F2- F3-                         B0----- F4- B1----- F5- B2----- F6- B3--",
        "stage 1 |    F0- F1- F2-                 B0----- F3- B1----- F4- B2----- F5- B3----- F6-",
        "stage 2 |        F0- F1-         B0----- F2- B1----- F3- B2----- F4- B3----- F5- B4-----",
        "stage 3 |            F0- B0----- F1- B1----- F2- B2----- F3- B3----- F4- B4----- F5- B5--",
        "",
        "stage 0 |--- F7- B4----- F8- B5----- F9- B6----- F10 B7----- F11 B8----- F12 B9----- F13",
        "stage 1 |B4----- F7- B5----- F8- B6----- F9- B7----- F10 B8----- F11 B9----- F12 B10----",
        "stage 2 |F6- B5----- F7- B6----- F8- B7----- F9- B8----- F10 B9----- F11 B10---- F12 B11-",
        "stage 3 |--- F6- B6----- F7- B7----- F8- B8----- F9- B9----- F10 B10---- F11 B11---- F12",
        "",
        "stage 0 |B10---- F14 B11---- F15 B12----     B13----     B14----     B15----",
        "stage 1 |F13 B11---- F14 >1B12<- F15 B13----     B14----     B15----",
        "stage 2 |--- F13 B12---- F14 B13---- F15 B14----     B15----",
        "stage 3 |B12---- F13 B13---- F14 B14---- F15 B15----",
    ]


@pytest.mark.parametrize("width", [40, 79, 100, 200])
def test_every_label_is_in_one_piece_and_no_line_too_long(width):
    drawn = grid(one_f_one_b(4, 16), width=width)
    assert max(map(len, drawn.splitlines())) <= width
    words = drawn.replace("-", " ").replace("|", " ").split()
    for kind in "FB":
        assert sorted(word for word in words if word[0] == kind) == sorted(
            f"{kind}{m}" for m in range(16) for _ in range(4)
        )


def test_a_schedule_that_stops_is_not_drawn():
    with pytest.raises(ScheduleError, match=r"stops after 0 of 1 tasks.*Add 0F0"):
        grid(parse("0B0"))


def test_nothing_is_drawn_as_nothing():
    assert grid(()) == ""
