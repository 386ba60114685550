"""Cutting a model changes rounding, and nothing else.

In float32 a wrong term of 1e-6 would pass for rounding. In float64 rounding is 1e-16, so a pipeline
and the model in one piece must agree to 1e-12. JAX has 64 bits in whole processes only, so this is
a process of its own.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from quick_compiler import compiler

HERE = pathlib.Path(__file__).parent


@pytest.mark.slow
def test_what_is_run_again_agrees_to_the_last_digits_of_float64():
    run("float64_recomputation.py", 5)


@pytest.mark.slow
def test_pipelines_agree_to_the_last_digits_of_float64():
    run("float64_pipelines.py", 4)


def run(name, agreements):
    # The modules of cases import those of `tests`, as pytest lets them.
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        [sys.executable, str(HERE / name)],
        env={**compiler.environment(), "JAX_ENABLE_X64": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("agrees") == agreements
