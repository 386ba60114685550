"""Trainings that are killed at random and started again have the numbers of one without a break.

The seed in the name of a test repeats its kills.
"""

import pytest
import servers
from training_runs import KINDS

from case_marks import with_marks

KILLS = 5  # of a training


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kills")
    with servers.server(
        "kill_server.py", directory, MILLRACE_CACHE_DIR=str(directory / "cache")
    ) as function:
        yield function


def kill(ask, tmp_path, kind, seed, kills=KILLS):
    """Returns the number of kills, of a training that has all losses and weights."""
    found = ask({"kind": kind, "seed": seed, "kills": kills, "work": str(tmp_path / "run")})
    assert found["status"] == 0, found
    assert set(found["statuses"]) <= {0, -9}, found["statuses"]
    assert found["statuses"][-1] == 0
    expected, lines = found["expected"], found["lines"]
    assert lines[-1] == expected[-1], "weights"
    assert set(lines) == set(expected), sorted(set(lines) ^ set(expected))[:10]
    assert all(name == "lock" or "." not in name for name in found["names"]), found["names"]
    return found["kills"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    with_marks(
        KINDS,
        exhaustive=(
            "eight steps",
            "accumulation",
            "asynchronous, one step",
            "streamed",
            "generator, eight steps",
        ),
    ),
)
def test_training_that_is_killed_goes_on_with_the_same_numbers(ask, tmp_path, kind):
    seed = list(KINDS).index(kind)
    assert kill(ask, tmp_path, kind, seed, kills=3) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 105))
@pytest.mark.parametrize("kind", KINDS)
def test_training_that_is_killed_often(ask, tmp_path, kind, seed, record_property):
    kills = kill(ask, tmp_path, kind, seed)
    record_property("kills", kills)
    print(f"kills: {kills}")
    assert kills > 0
