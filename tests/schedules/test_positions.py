"""Schedules as arrays are those of the functions in `SCHEDULES`, for all sizes."""

import numpy as np
import pytest

from millrace.errors import ScheduleError
from millrace.schedules.positions import make_rows
from millrace.schedules.rows import PASSES, rows_of
from millrace.schedules.table import SCHEDULES
from millrace.schedules.task import Task
from millrace.schedules.text import parse
from millrace.schedules.v_rows import repeated_rows
from millrace.schedules.v_shape import Pattern

V = ("zb_v", "v_half", "v_min")
SIZES = [(p, m) for p in range(1, 8) for m in (1, 2, 3, 5, 6, 7, 8, 13, 21)]


def tasks_of(rows):
    tasks = [
        Task(int(stage), PASSES[kind], int(m))
        for kind, stage, m in zip(rows.kinds, rows.stages, rows.micro_batches, strict=True)
    ]
    ends = zip(rows.starts[:-1], rows.starts[1:], strict=True)
    return tuple(tuple(tasks[start:end]) for start, end in ends)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rows_are_those_of_the_schedule(name):
    for p, m in SIZES:
        for groups in range(1, p + 1) if name == "looped" else (p,):
            stages = 2 * p if name in V else p
            more = (groups,) if name == "looped" else ()
            schedule = SCHEDULES[name](stages, m, *more)
            rows = make_rows(name, stages, m, groups)
            assert tasks_of(rows) == schedule
            assert (rows.num_rows, rows.num_stages, rows.num_micro_batches) == (
                len(schedule),
                stages,
                m,
            )


@pytest.mark.parametrize("name", V)
def test_many_groups_of_a_v(name):
    for p, m in ((17, 9), (24, 31), (33, 70)):
        assert tasks_of(make_rows(name, 2 * p, m, p)) == SCHEDULES[name](2 * p, m)


@pytest.mark.parametrize("name", SCHEDULES)
def test_sizes_without_a_schedule_are_refused(name):
    with pytest.raises(ScheduleError, match=r"needs at least one of each: .* num_stages=0, num_m"):
        make_rows(name, 0, 4, 1)


@pytest.mark.parametrize("name", [*V, "looped"])
def test_groups_that_cannot_share_the_stages_are_refused_in_the_same_words(name):
    with pytest.raises(ScheduleError) as of_tasks:
        SCHEDULES[name](3, 4, *((5,) if name == "looped" else ()))
    with pytest.raises(ScheduleError) as of_rows:
        make_rows(name, 3, 4, 5)
    assert str(of_rows.value) == str(of_tasks.value)


def test_too_little_memory_is_refused():
    with pytest.raises(ScheduleError, match="max_sets=1 is less than this pattern needs on 2"):
        repeated_rows(Pattern(steps=(2, 4, 2, 4), ends=(1, 1, 1)), 2, 4, max_sets=1)


def test_any_schedule_becomes_rows_and_reads_like_the_drawing():
    schedule = parse("0F0 0F1 0B0 0B1 \n 1F0 1I0 1W0 1F1 1I1 1W1")
    rows = rows_of(schedule)
    assert rows.kinds.tolist() == [0, 0, 1, 1, 0, 2, 3, 0, 2, 3]
    assert rows.starts.tolist() == [0, 4, 10]
    assert rows.num_tasks == 10
    assert np.array_equal(rows.row_of_stage, [0, 1])
    assert tasks_of(rows) == schedule
