"""The marks for users' own tests, in pytest runs of their own."""

import os
import subprocess
import sys

import pytest

MODEL = """
import pytest

def train(*rows):
    import millrace
    import keras
    import numpy as np

    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)], name="mine")
    model.compile("sgd", "mse", steps_per_execution=4)
    for count in rows:
        x = np.ones((count, 8), "float32")
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
"""


def run(directory, tests, *flags):
    (directory / "test_mine.py").write_text(tests)
    (directory / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    result = subprocess.run(
        # no summary: where CI is set, it repeats each failure's whole text
        [sys.executable, "-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", *flags],
        cwd=directory,
        env={**os.environ, "MILLRACE_CACHE_DIR": "off"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return result.stdout + result.stderr


def test_nothing_is_imported_for_plain_tests(tmp_path):
    output = run(
        tmp_path,
        "import sys\n\n"
        "def test_plain():\n"
        "    assert 'pytest_millrace' in sys.modules\n"
        "    assert not {'millrace', 'jax', 'keras'} & set(sys.modules)\n",
    )
    assert "1 passed" in output


def test_the_marks_are_registered(tmp_path):
    output = run(tmp_path, "", "--markers")
    assert "@pytest.mark.max_compiles(n): fails a test that makes more than n" in output
    assert "@pytest.mark.max_peak_bytes(size): fails a test" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="one process"),
        pytest.param(("-n", "2"), id="xdist"),
    ],
)
def test_what_passes_and_what_fails(tmp_path, flags):
    output = run(
        tmp_path,
        MODEL
        + """
@pytest.mark.max_compiles(1)
@pytest.mark.max_peak_bytes("1GB")
def test_within():
    train(16, 16)

@pytest.mark.max_compiles(1)
def test_too_many():
    train(16, 18)

@pytest.mark.max_peak_bytes(100)
def test_too_large():
    train(16)

@pytest.mark.max_compiles(0)
@pytest.mark.max_peak_bytes(100)
def test_both():
    train(16)

@pytest.mark.max_compiles(0)
def test_own_error():
    train(16)
    raise KeyError("mine")

@pytest.mark.max_compiles(0)
def test_skipped():
    train(16)
    pytest.skip("for once")
""",
        *flags,
    )
    assert "4 failed, 1 passed, 1 skipped" in output
    assert "2 executables were made, and max_compiles allows 1:" in output
    assert "1. train_run of 'mine': " in output
    assert "2. train_run of 'mine': compiled in " in output
    assert "shape (4, 8) -> (2, 8)" in output  # the cause, and then what to do
    assert "max_peak_bytes allows 100 bytes on a device, and more is needed by:" in output
    assert "train_run of 'mine' for float32[4,8], float32[4,1]: " in output
    assert "strategy.memory_report(model, batch_spec) shows what they are needed for" in output
    assert output.count("max_compiles allows 0:") == 1  # of test_both
    assert "KeyError: 'mine'" in output
    assert "pytest_millrace.py" not in output  # no traceback of ours


@pytest.mark.slow
def test_executables_are_counted_wherever_they_come_from(tmp_path):
    output = run(
        tmp_path,
        MODEL
        + """
def test_first():
    train(16)

@pytest.mark.max_compiles(0)
def test_shared():
    train(16)
""",
    )
    assert "1 failed, 1 passed" in output
    assert "1 executable was made, and max_compiles allows 0:" in output
    assert "shared with an equal program" in output


@pytest.mark.slow
def test_wrong_arguments_are_refused_before_the_test_runs(tmp_path):
    wrong = [
        "max_compiles()",
        "max_compiles('1')",
        "max_compiles(True)",
        "max_compiles(-1)",
        "max_compiles(n=1)",
        "max_peak_bytes(1, 2)",
        "max_peak_bytes('2 parsecs')",
        "max_peak_bytes(0.5)",
    ]
    output = run(
        tmp_path,
        "import pytest\n"
        + "".join(
            f"\n@pytest.mark.{mark}\ndef test_{number}():\n    print('ran')\n"
            for number, mark in enumerate(wrong)
        ),
    )
    assert f"{len(wrong)} errors" in output
    assert "Received: max_compiles(). Set @pytest.mark.max_compiles(1)." in output
    assert "0 or more. Received: '1'. Set @pytest.mark.max_compiles(1)." in output
    assert "Received: True." in output
    assert "Received: -1." in output
    assert "Received: max_compiles(n=1)." in output
    assert 'Received: max_peak_bytes(1, 2). Set @pytest.mark.max_peak_bytes("2GB").' in output
    assert "Received: '2 parsecs'." in output
    assert "Received: 0.5." in output
    assert "ran" not in output.replace("warnings", "").split("short test summary")[0].split()
