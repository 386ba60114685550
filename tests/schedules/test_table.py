import pathlib

import pytest

from case_marks import with_marks
from millrace.base.options.default_devices import is_v_shaped, v_devices
from millrace.errors import ScheduleError
from millrace.run.schedules.check import check
from millrace.run.schedules.gpipe import gpipe
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.table import SCHEDULES, check_choice, make_schedule
from millrace.run.schedules.text import grid, parse, write

OWN = "0F0 0B0 0F1 0B1  # all on one group after the other \n 1F0 1B0 1F1 1B1"


def rounds_of(name):
    """How many stages a device group may have."""
    return {"looped": (1, 2, 3, 4)}.get(name, (2,) if is_v_shaped(name) else (1,))


def groups_of(name, p, v):
    if is_v_shaped(name):
        return v_devices(p * v)
    return tuple(stage % p for stage in range(p * v))


def refused(choice, num_stages=2, num_micro_batches=2, groups=(0, 1)):
    with pytest.raises(ScheduleError) as error:
        make_schedule(choice, num_stages, num_micro_batches, groups)
    return str(error.value)


def test_the_names():
    assert list(SCHEDULES) == [
        *("gpipe", "1f1b", "1f1b_slack", "grouped", "sequential", "looped", "zero_bubble"),
        *("zb_v", "v_half", "v_min"),
    ]


@pytest.mark.parametrize("name", with_marks(SCHEDULES, slow=("looped", "zb_v", "v_half", "v_min")))
def test_every_name_makes_a_schedule_of_any_size(name):
    for p in range(1, 9):
        for v in rounds_of(name):
            groups = groups_of(name, p, v)
            for m in range(1, 4 * p + 2, 3):
                schedule = make_schedule(name, p * v, m, groups)
                check(schedule, p * v, m)
                assert len(schedule) == p
                assert make_schedule(name.upper(), p * v, m, groups) == schedule


def test_names_make_what_they_say():
    assert make_schedule("GPipe", 3, 4, (0, 1, 2)) == gpipe(3, 4)
    assert make_schedule("1F1B", 3, 4, (0, 1, 2)) == one_f_one_b(3, 4)
    assert make_schedule("1F1B_slack", 3, 4, (0, 1, 2)) == one_f_one_b(3, 4, slack=1)
    assert make_schedule("Grouped", 3, 4, (0, 1, 2)) == one_f_one_b(3, 4, run_ahead=2)


def test_other_schedules_have_a_row_for_each_stage_on_any_groups():
    assert make_schedule("1f1b", 4, 4, (0, 1, 1, 0)) == one_f_one_b(4, 4)


@pytest.mark.parametrize(
    "function",
    [
        gpipe,
        lambda p, m: write(gpipe(p, m)),
        lambda p, m: write(gpipe(p, m)).splitlines(),
        lambda p, m: [list(map(str, row)) for row in gpipe(p, m)],
        lambda p, m: [list(row) for row in gpipe(p, m)],
    ],
)
def test_a_function_may_return_tasks_or_text(function):
    assert make_schedule(function, 3, 4, (0, 1, 2)) == gpipe(3, 4)


def test_text_and_files(tmp_path, monkeypatch):
    path = tmp_path / "my schedule"
    path.write_text(OWN)
    for choice in (OWN, path, str(path)):
        assert make_schedule(choice, 2, 2, (0, 1)) == parse(OWN)
    monkeypatch.chdir(tmp_path)
    assert make_schedule("my schedule", 2, 2, (0, 1)) == parse(OWN)
    assert make_schedule("0F0,0B0", 1, 1, (0,)) == parse("0F0 0B0")


def test_the_drawings_of_the_docs():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "schedules.md").read_text()
    sizes = {"gpipe": (3, 4), "sequential": (3, 2), "looped": (4, 2)}
    for name in SCHEDULES:
        p, m = sizes.get(name, (4, 3) if is_v_shaped(name) else (3, 5))
        groups = (0, 1, 1, 0) if is_v_shaped(name) else (0, 1, 0, 1)
        for line in grid(make_schedule(name, p, m, groups)).splitlines():
            assert f"    {line}\n" in page.partition(f'**`"{name}"`**')[2].partition("**`")[0]


def test_a_choice_can_be_checked_without_a_pipeline(tmp_path):
    path = tmp_path / "schedule.txt"
    path.write_text(OWN)
    for choice in (*SCHEDULES, "GPipe", gpipe, OWN, path):
        check_choice(choice)
    with pytest.raises(ScheduleError, match=r"schedule='gpip' is no schedule.*mean 'gpipe'"):
        check_choice("gpip")
    with pytest.raises(ScheduleError, match="schedule=3 is no schedule"):
        check_choice(3)
    with pytest.raises(ScheduleError, match=r"Line 1 of the schedule: '0X0'"):
        check_choice("0F0 0X0")


def test_text_for_more_micro_batches_is_cut():
    text = write(one_f_one_b(2, 5))
    for m in range(1, 6):
        schedule = make_schedule(text, 2, m, (0, 1))
        assert {task.micro_batch for row in schedule for task in row} == set(range(m))
    assert write(make_schedule(OWN, 2, 1, (0, 1))) == "0F0 0B0\n1F0 1B0"


def test_text_for_fewer_micro_batches():
    assert refused(OWN, num_micro_batches=5) == (
        "The schedule is written for 2 micro-batches, and the update has 5. Add the tasks of "
        "the others, or set gradient_accumulation_steps_per_replica=2."
    )
    assert "written for 0 micro-batches" in refused("\n")


def test_text_and_functions_are_checked():
    assert "waits for" in refused("0F0 0B0 \n 1B0 1F0", num_micro_batches=1)
    assert "lacks 1B0 and 1F0" in refused(lambda p, m: "0F0 0B0", num_micro_batches=1)
    assert "Line 1 of the schedule: '1f0'" in refused("0F0 1f0")
    assert "'2X0' is no task" in refused(lambda p, m: [["2X0"]])


@pytest.mark.parametrize("value", [None, 3, [3], [[3]]])
def test_a_function_that_returns_something_else(value):
    text = refused(lambda p, m: value)
    assert f"returned {value!r}. Return a list of rows" in text
    assert "'0F0 0B0'" in text


def test_an_unknown_name():
    assert refused("zerobubble") == (
        "schedule='zerobubble' is no schedule and no file. Did you mean 'zero_bubble'? "
        "Use one of gpipe, 1f1b, 1f1b_slack, grouped, sequential, looped, zero_bubble, zb_v, "
        "v_half, v_min; a function (num_stages, num_micro_batches) of your own; or text such as "
        "'0F0 0B0', or its file."
    )
    assert "Did you mean" not in refused("none")
    assert "mean '1f1b'" in refused("1f1")
    assert "schedule='' is" in refused("")


@pytest.mark.parametrize("choice", [3, None, pathlib.Path("missing.txt")])
def test_what_is_no_choice(choice):
    assert f"schedule={choice!r} is no schedule and no file." in refused(choice)


@pytest.mark.parametrize("groups", [(0, 1, 0, 1), (1, 0, 1, 0), (5, 3, 5, 3), (0, 1, 0, 1, 0)])
def test_looped_takes_any_names_of_groups(groups):
    schedule = make_schedule("looped", len(groups), 4, groups)
    assert [{task.stage % 2 for task in row} for row in schedule] == [{0}, {1}]


@pytest.mark.parametrize(
    ("groups", "remedy"),
    [
        ((0, 0, 1, 1), [0, 1, 0, 1]),
        ((0, 1, 1, 0), [0, 1, 0, 1]),
        ((0, 1, 2, 1), [0, 1, 2, 0]),
        ((0, 1), [0, 1, 0, 1]),
        ((), [0, 0, 0, 0]),
    ],
)
def test_looped_says_which_mapping_it_needs(groups, remedy):
    text = refused("looped", num_stages=4, groups=groups)
    assert f"device groups {list(groups)} for 4 stages" in text
    assert text.endswith(f"Set device_mapping={remedy}.")


@pytest.mark.parametrize("name", ["zb_v", "v_half", "v_min", "V_Half"])
def test_a_v_takes_any_names_of_groups_and_no_other_form(name):
    schedule = make_schedule(name, 4, 4, (5, 3, 3, 5))
    assert [{task.stage for task in row} for row in schedule] == [{0, 3}, {1, 2}]
    text = refused(name, num_stages=4, groups=(0, 1, 0, 1))
    assert "device groups [0, 1, 0, 1] for 4 stages" in text
    assert text.endswith("Set device_mapping=[0, 1, 1, 0].")
    assert "Assign 2 or 4 stages" in refused(name, num_stages=3, groups=(0, 1, 0))


def test_near_names_of_a_v():
    assert "mean 'zb_v'" in refused("zbv")
    assert "mean 'v_half'" in refused("vhalf")
