import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import parse


def message(text):
    with pytest.raises(ScheduleError) as error:
        simulate(parse(text), UNIT_COST)
    return str(error.value)


def test_names_what_each_row_waits_for_and_the_task_to_move():
    assert message("0F0 0B0 \n 1B0 1F0") == (
        "The schedule stops after 1 of 4 tasks: row 0 has 0B0 next, which waits for 1B0; "
        "row 1 has 1B0 next, which waits for 1F0. In row 1, put 1F0 before 1B0."
    )


def test_follows_a_ring_of_rows_to_the_task_that_could_run():
    text = "0F0 0B0 0F1 0B1 \n 1F0 1F1 1B0 1B1"
    assert message(text).endswith(
        "row 0 has 0B0 next, which waits for 1B0; row 1 has 1F1 next, which waits for 0F1. "
        "In row 1, put 1B0 before 1F1."
    )


def test_rows_that_have_ended_wait_for_nothing():
    assert "row 0" not in message("0F0 \n 1F1 1F0")


def test_a_task_that_is_nowhere_is_to_be_added():
    assert message("0F0 0B0 \n 1F0").endswith("0B0 next, which waits for 1B0. Add 1B0.")


@pytest.mark.parametrize("moves", [8])
def test_the_advice_leads_out(moves):
    """Followed again and again, it makes the worst order one that ends."""
    rows = [text.split() for text in ("0B1 0F1 0B0 0F0", "1B1 1B0 1F1 1F0")]
    for _ in range(moves):
        text = "\n".join(map(" ".join, rows))
        try:
            simulate(parse(text), UNIT_COST)
        except ScheduleError as error:
            *_, row, _, task, _, other = str(error).rstrip(".").replace(",", "").split()
            tasks = rows[int(row)]
            tasks.remove(task)
            tasks.insert(tasks.index(other), task)
        else:
            return
    pytest.fail(f"still stuck: {rows}")
