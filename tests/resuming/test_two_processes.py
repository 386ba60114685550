"""Trainings of two processes that are killed, end by SIGTERM, and go on by themselves."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from case_marks import exhaustive

pytestmark = pytest.mark.slow

MILLRACE = "from millrace.tools.cli.main import main; main()"
SCRIPT = '''
import os, signal, sys, time
import millrace
millrace.distributed.initialize()
import jax, keras, numpy as np

kind, directory, where, name = sys.argv[1:]
keras.utils.set_random_seed(1)
strategy = millrace.Strategy()
with strategy.scope():
    model = keras.Sequential([
        keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3),
        keras.layers.Dense(16), keras.layers.Dense(1),
    ])
model.compile("adam", "mse", steps_per_execution=4)
if kind == "stages":
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)

class Fault(keras.callbacks.Callback):
    """Sends a signal to process 1, in the first process of that number only."""
    executions = 0
    def on_train_batch_end(self, batch, logs=None):
        self.executions += 1
        mark = os.path.join(directory, "..", "done")
        due = where != "none" and self.executions == int(where) and jax.process_index() == 1
        if due and not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), getattr(signal, name))
            time.sleep(0.5)

callbacks = [Fault()]
if directory != "none":
    callbacks.append(millrace.callbacks.Checkpoint(directory, every_steps=12, async_save=False))
x = np.random.default_rng(0).standard_normal((320, 8)).astype("float32")
y = x.sum(1, keepdims=True)
history = model.fit(x, y, epochs=3, batch_size=8, callbacks=callbacks, verbose=0)
if jax.process_index() == 0:
    import json, zlib
    crc = [zlib.crc32(np.ascontiguousarray(w)) for w in model.get_weights()]
    print("RESULT", json.dumps([history.history, crc]))
'''


def launch(tmp_path, *arguments, restarts=0):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-c", MILLRACE, "launch", "--processes", "2"]
    command += ["--restarts", str(restarts), str(script), *map(str, arguments)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MILLRACE_CACHE_DIR": "off"},
    )
    return done.returncode, done.stdout + done.stderr


def result(output):
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Returns the result of a training without a break."""
    known = {}

    def of(kind):
        if kind not in known:
            code, output = launch(tmp_path_factory.mktemp(kind), kind, "none", "none", "none")
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
    code, output = launch(tmp_path, kind, saved, 4, name)
    assert code == status, output
    assert "RESULT" not in output
    newest = max(path.name for path in saved.glob("step-*"))
    assert int(newest.removeprefix("step-")) % 4 == 0
    code, output = launch(tmp_path, kind, saved, "none", "none")
    assert code == 0, output
    assert result(output) == whole(kind)


@pytest.mark.parametrize("kind", ["replicas", "stages"])
def test_a_killed_process_ends_the_others_and_all_go_on(tmp_path, kind, whole):
    saved = tmp_path / "run" / "checkpoints"
    saved.parent.mkdir()
    code, output = launch(tmp_path, kind, saved, 6, "SIGKILL", restarts=1)
    assert code == 0, output
    assert "restart 1 of 1" in output
    assert result(output) == whole(kind)


def test_processes_that_see_other_checkpoints_are_refused(tmp_path):
    script = SCRIPT.replace("directory, where", "directory_of_all, where").replace(
        "keras.utils.set",
        'directory = f"{directory_of_all}-{jax.process_index()}"\nkeras.utils.set',
    )
    (tmp_path / "other.py").write_text(script)
    saved = tmp_path / "run"
    other = pathlib.Path(f"{saved}-0")
    command = [sys.executable, "-c", MILLRACE, "launch", "--processes", "2"]
    command += [str(tmp_path / "other.py"), "replicas", str(saved), "none", "none"]
    for expected in (0, 1):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "MILLRACE_CACHE_DIR": "off"},
        )
        output = done.stdout + done.stderr
        assert done.returncode == expected, output
    assert "find different checkpoints" in output
    assert "none" in output
    assert list(other.glob("step-*"))
