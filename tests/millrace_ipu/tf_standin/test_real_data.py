"""Data sets of the real TensorFlow in programs of the IPU. It is in no lock file but `sources`."""

import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")


def test_map_functions_are_tensorflows_and_loops_are_ours():
    program = pathlib.Path(__file__).parent / "real_data_program.py"
    command = [str(pathlib.Path(sys.executable).parent / "millrace"), "run", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "tensorflow [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]",
        "28.0 [0.5, 2.5, 4.5, 6.5]",
        "[0.0]",
    ]
