from millrace.run.schedules.dependencies import dependencies
from millrace.run.schedules.text import parse


def words(text):
    waits = dependencies(parse(text))
    return {str(task): " ".join(map(str, others)) for task, others in waits.items()}


def test_reads_like_the_drawing():
    assert words("0F0 0B0 \n 1F0 1B0 \n 2F0 2B0") == {
        "0F0": "",
        "1F0": "0F0",
        "2F0": "1F0",
        "2B0": "2F0",
        "1B0": "1F0 2B0",
        "0B0": "0F0 1B0",
    }


def test_halves_pass_cotangents_on_and_weights_wait_for_nothing_else():
    waits = words("0F0 0B0 \n 1F0 1I0 1W0 \n 2F0 2I0 2W0")
    assert waits["0B0"] == "0F0 1I0"
    assert waits["1I0"] == "1F0 2I0"
    assert waits["1W0"] == "1I0"


def test_names_what_the_schedule_lacks():
    assert words("1B0") == {"1B0": "1F0"}
    assert words("0F0 0B0 \n 1F0")["0B0"] == "0F0 1B0"
