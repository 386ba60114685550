"""`millrace precompile`, and the run that finds what it has compiled."""

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from millrace.cli.main import main

SCRIPT = """
import json, sys
import helper
import millrace
import keras
import numpy as np

strategy = millrace.Strategy(devices=1)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"], steps_per_execution=4)
x, y = np.ones((int(sys.argv[1]), 8), "float32"), np.ones((int(sys.argv[1]), 1), "float32")
history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x[:19], y[:19]))
model.evaluate(x, y, verbose=0)
model.predict(x, verbose=0)
model.save(helper.path)
"""

PIPELINE = """
import json
import millrace
import keras
import numpy as np

strategy = millrace.Strategy("cpu:2")
inputs = keras.Input((8,))
with strategy.scope():
    with millrace.PipelineStage(0):
        hidden = keras.layers.Dense(6, "relu")(inputs)
    with millrace.PipelineStage(1):
        outputs = keras.layers.Dense(1)(hidden)
    model = keras.Model(inputs, outputs)
model.compile("adam", "mse", steps_per_execution=8)
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
x = np.ones((91, 8), "float32")
history = model.fit(x, x[:, :1], batch_size=4, verbose=0, validation_data=(x[:10], x[:10, :1]))
model.evaluate(x, x[:, :1], verbose=0)
model.predict(x, verbose=0)
"""

PRINTS = """
print(json.dumps({
    "origins": [each.origin.value for each in strategy.compile_log if each.is_executable],
    "loss": history.history["loss"],
}))
"""


def run(directory, *words, cache=None):
    """Runs Python on a script, or `millrace precompile`, and returns what it printed."""
    command = ["-c", "from millrace.cli.main import main; main()", *words]
    if words[0].endswith(".py"):
        command = list(words)
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "MILLRACE_CACHE_DIR": str(cache or "off")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def found(result):
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("{")]
    return json.loads(line)


def test_the_flags():
    flags = {
        name: " ".join(flag for each in main.commands[name].params for flag in each.opts)
        for name in ("compile-log", "precompile")
    }
    assert flags == {"compile-log": "--json --recompilations run", "precompile": "script arguments"}
    help_of = main.commands["precompile"].help
    assert "Their results are zeros" in help_of
    assert "one batch is drawn" in help_of


def compiles_nothing_after(tmp_path, script, *words):
    script_path = tmp_path / "scripts" / "mine.py"
    script_path.parent.mkdir()
    script_path.write_text(script + PRINTS)
    (script_path.parent / "helper.py").write_text(f"path = {str(tmp_path / 'saved.keras')!r}")
    cache = tmp_path / "cache"
    first = run(tmp_path, "precompile", str(script_path), *words, cache=cache)
    described = found(first)
    assert set(described["loss"]) == {0.0}
    count = len(described["origins"])
    line = first.stdout.splitlines()[-1]
    assert line.startswith(f"{count} executables for {script_path} in ")
    assert " compiled" in line
    assert "cache," not in line
    assert line.endswith(f". The cache is {cache}.")
    ran = found(run(tmp_path, str(script_path), *words, cache=cache))
    assert len(ran["origins"]) == count
    assert set(ran["origins"]) <= {"cache", "shared"}  # stages may be equal to others
    assert ran["loss"][0] > 0.0


@pytest.mark.slow
def test_a_run_after_it_compiles_nothing(tmp_path):
    compiles_nothing_after(tmp_path, SCRIPT, "45")


@pytest.mark.slow
def test_a_pipeline_after_it_compiles_nothing(tmp_path):
    compiles_nothing_after(tmp_path, PIPELINE)


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [
        (SCRIPT, 2, "Error: What is compiled would be lost: this process has no cache of"),
        (
            "print('nothing')",
            2,
            "Error: mine.py has compiled nothing: it never called fit, evaluate",
        ),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit()", 2, "has compiled nothing"),
    ],
)
def test_what_goes_wrong(tmp_path, monkeypatch, script, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(script)
    (tmp_path / "helper.py").write_text("path = 'saved.keras'")
    before = list(sys.path), list(sys.argv)
    result = CliRunner().invoke(main, ["precompile", "mine.py", "45"])
    sys.modules.pop("helper", None)
    assert result.exit_code == code
    assert message in result.stderr
    assert (list(sys.path), list(sys.argv)) == before
    assert not (tmp_path / "saved.keras").exists()


def test_an_error_of_the_script_keeps_its_traceback(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nraise KeyError(sys.argv[1:], __name__)")
    result = CliRunner().invoke(main, ["precompile", str(tmp_path / "mine.py"), "--a", "b"])
    assert isinstance(result.exception, KeyError)
    assert result.exception.args == (["--a", "b"], "__main__")
