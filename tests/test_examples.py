import os
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
SLOW = {"digits"}  # more than 10 s on two cores

CASES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else [])
    for path in sorted(EXAMPLES.glob("*.py"))
]


@pytest.mark.parametrize("path", CASES)
def test_runs(path, tmp_path):
    # Without what the tests set up for themselves: as a user would run it, in any directory.
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    result = subprocess.run(
        [sys.executable, str(path), "--small"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert not list(tmp_path.iterdir())  # an example leaves nothing behind
