"""Every capability at sizes of real use, on two cores and on one: `cases.py` in processes.

On one core XLA's threads and Python's take turns, which shows waits that two cores hide.
"""

import os
import pathlib
import subprocess
import sys

import pytest

CASES = pathlib.Path(__file__).with_name("cases.py")
START = "from millrace.tools.cli.main import main; main()"
LAUNCH = ["-c", START, "launch", "--processes", "2", "--devices-per-process", "1"]


def run(words, cores):
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < cores:
        pytest.skip(f"needs {cores} cores")
    result = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=600,
        preexec_fn=lambda: os.sched_setaffinity(0, mine[:cores]),
    )
    assert result.returncode == 0, result.stdout + result.stderr[-8000:]


@pytest.mark.slow
@pytest.mark.parametrize("cores", [2, 1])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_at_size(devices, cores):
    run([str(CASES), str(devices)], cores)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [2, 1])
def test_at_size_over_processes(cores):
    run([*LAUNCH, str(CASES), "0"], cores)
