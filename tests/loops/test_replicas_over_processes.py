"""Replicas of functions over two processes have the bits of the same devices in one process."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parent / "replica_script.py"
START = "from millrace.tools.cli.main import main; main()"


def launch(processes, devices, directory):
    options = ["--processes", str(processes), "--devices-per-process", str(devices)]
    result = subprocess.run(
        [sys.executable, "-c", START, "launch", *options, str(SCRIPT), str(directory)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.shipped_compiler
@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_two_processes_have_the_bits_of_one(devices, tmp_path):
    launch(1, devices, tmp_path)
    launch(2, devices // 2, tmp_path)
    [one] = tmp_path.glob("1-0.txt")
    expected = one.read_text().splitlines()
    assert len(expected) == 6
    found = [path.read_text().splitlines() for path in sorted(tmp_path.glob("2-*.txt"))]
    if devices == 2:  # the pipeline's queue belongs to the process of its last stage
        assert found[0][:-1] == expected[:-1]
        assert found[1] == expected
    else:
        assert found == [expected] * 2
