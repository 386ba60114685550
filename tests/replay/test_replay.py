"""`millrace replay`, run in another process than the one that trained."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MODULE = """
import keras

@keras.saving.register_keras_serializable()
class Log(keras.layers.Layer):
    def call(self, x):
        return keras.ops.log(x)
"""

SCRIPT = """
import millrace
import keras
import numpy as np
from mine import Log

keras.utils.set_random_seed(2)
with millrace.Strategy(devices=1).scope():
    model = keras.Sequential([
        keras.Input((3,)),
        keras.layers.Dropout(0.2, seed=1),
        keras.layers.Dense(4, "sigmoid", name="first"),
        Log(name="log"),
        keras.layers.Dense(1),
    ])
model.compile("adam", "mse", steps_per_execution=8)
x = np.random.default_rng(0).standard_normal((64, 3)).astype("float32")
x[40], x[41] = -1e4, 1e4
model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
watch = millrace.callbacks.NaNWatch(directory="flights")
model.fit(x, x[:, :1], batch_size=4, shuffle=False, verbose=0, callbacks=[watch])
print(watch.written)
"""


def run(directory, *words):
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    (directory / "mine.py").write_text(MODULE)
    trained = run(directory, sys.executable, "-c", SCRIPT)
    assert trained.returncode == 0, trained.stderr
    assert "NaNWatch: activation log has" in trained.stderr
    return directory, trained.stdout.strip()


def replay(directory, *words):
    command = "import sys; from millrace.cli.main import main; main(sys.argv[1:])"
    return run(directory, sys.executable, "-c", command, "replay", *words)


def test_shows_the_tensor_that_went_wrong_first(written):
    directory, flight = written
    shown = replay(directory, flight, "--import", "mine")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.isascii()
    assert "epoch 0, batch 10, update 5, micro-batch 0 of 2" in shown.stdout
    (first,) = [line for line in shown.stdout.splitlines() if line.startswith("first ->")]
    assert "micro-batch 0  activation log" in first
    assert "The same tensor is the first" in shown.stdout
    assert "micro-batch 1" not in shown.stdout
    assert "micro-batch 1" in replay(directory, flight, "--import", "mine", "--all").stdout


def test_says_what_to_import(written):
    directory, flight = written
    shown = replay(directory, flight)
    assert shown.returncode == 2
    assert "Could not locate class 'Log'" in shown.stderr
    assert "--import my_module" in shown.stderr
    assert len(shown.stderr) < 1000


def test_says_which_module_is_missing(written):
    directory, flight = written
    shown = replay(directory, flight, "--import", "yours")
    assert shown.returncode == 2
    assert "--import yours does not import" in shown.stderr
