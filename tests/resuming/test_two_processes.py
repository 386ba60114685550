"""Trainings of two processes that are killed, end by SIGTERM, and continue by themselves."""

import json
import pathlib
import subprocess
import sys

import pytest

from case_marks import exhaustive
from quick_compiler import compiler

pytestmark = pytest.mark.slow

MILLRACE = "from millrace.tools.cli.main import main; main()"
SCRIPT = pathlib.Path(__file__).parent / "fit_of_two_processes.py"


def launch(*arguments, restarts=0):
    command = [sys.executable, "-c", MILLRACE, "launch", "--processes", "2"]
    command += ["--restarts", str(restarts), str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env=compiler.environment(),
    )
    return done.returncode, done.stdout + done.stderr


def result(output):
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.fixture(scope="module")
def whole():
    """Returns the result of a training without a break."""
    known = {}

    def of(kind):
        if kind not in known:
            code, output = launch(kind, "none", "none", "none")
            assert code == 0, output
            known[kind] = result(output)
        return known[kind]

    return of


@pytest.mark.parametrize(
    ("kind", "name", "status"),
    [
        exhaustive("replicas", "SIGTERM", 143),
        ("stages", "SIGTERM", 143),
        ("replicas", "SIGINT", 1),
        pytest.param("stages", "SIGINT", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_a_signal_to_one_process_saves_all_and_the_script_goes_on(
    tmp_path, kind, name, status, whole
):
    saved = tmp_path / "run" / "checkpoints"
    saved.parent.mkdir()
    code, output = launch(kind, saved, 4, name)
    assert code == status, output
    assert "RESULT" not in output
    newest = max(path.name for path in saved.glob("step-*"))
    assert int(newest.removeprefix("step-")) % 4 == 0
    code, output = launch(kind, saved, "none", "none")
    assert code == 0, output
    assert result(output) == whole(kind)


@pytest.mark.parametrize("kind", ["replicas", "stages"])
def test_a_killed_process_ends_the_others_and_all_go_on(tmp_path, kind, whole):
    saved = tmp_path / "run" / "checkpoints"
    saved.parent.mkdir()
    code, output = launch(kind, saved, 6, "SIGKILL", restarts=1)
    assert code == 0, output
    assert "restart 1 of 1" in output
    assert result(output) == whole(kind)


def test_processes_that_see_other_checkpoints_are_refused(tmp_path):
    for expected in (0, 1):
        code, output = launch("replicas", tmp_path / "run", "none", "none", "apart")
        assert code == expected, output
    assert "find different checkpoints" in output
    assert "none" in output
    assert list((tmp_path / "run-0").glob("step-*"))
