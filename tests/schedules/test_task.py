import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules.task import Pass, Task, parse_task

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("kind", Pass)
def test_prints_and_parses(kind):
    task = Task(12, kind, 340)
    assert str(task) == f"12{kind.value}340"
    assert parse_task(str(task)) == task


def test_is_frozen_and_small():
    task = Task(2, Pass.FORWARD, 0)
    with pytest.raises(AttributeError):
        task.stage = 1
    assert not hasattr(task, "__dict__")


@pytest.mark.parametrize("word", ["", "2F", "F0", "2X0", "2f0", "-1F0", "2F0.5", "2F0 ", "²F0"])
def test_says_what_a_task_looks_like(word):
    with pytest.raises(ScheduleError, match=r"is no task.*such as 2F0.*F, B, I and W") as error:
        parse_task(word)
    assert repr(word) in str(error.value)
