"""A loop of one's own that runs as replicas of two processes is saved, killed, and continues."""

import json
import pathlib
import subprocess
import sys

import pytest

from quick_compiler import compiler

pytestmark = pytest.mark.slow

MILLRACE = "from millrace.tools.cli.main import main; main()"
SCRIPT = pathlib.Path(__file__).parent / "loop_of_two_processes.py"


def launch(*arguments, restarts=0):
    options = ["--processes", "2", "--devices-per-process", "1", "--restarts", str(restarts)]
    done = subprocess.run(
        [sys.executable, "-c", MILLRACE, "launch", *options, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=compiler.environment(),
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    (line,) = [each for each in output.splitlines() if each.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT")), output


def test_a_killed_loop_goes_on_with_the_same_bits(tmp_path):
    whole, _ = launch(tmp_path / "whole", 20, "whole")
    broken, output = launch(tmp_path / "broken", 20, "killed", restarts=1)
    assert "restart 1 of 1" in output
    assert broken == whole
    assert whole[0] == 20
    again, _ = launch(tmp_path / "broken", 20, "whole")
    assert again == whole
