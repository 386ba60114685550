"""Idioms of environment variables that a program sets itself."""

import pathlib

import pytest
from idioms import idiom

from millrace.compilation.cache.use import use_cache

# As a document about recompilation has it: variables after the imports.
PROGRAM = """
import os
import sys
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu

SET
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
AFTER
config.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()

@tf.function(experimental_compile=True)
def graph(mult, a, b, c):
    return mult * ((a + b) + (a + c))

def run(mult, rows):
    arrays = [tf.constant(np.tile(np.float32(r), (rows, 1))) for r in ([1, 1], [0, 1], [1, 5])]
    return np.asarray(strategy.run(graph, args=[tf.constant(mult, tf.float32), *arrays]))

print(run(10.0, 1).tolist())
"""
SET = """
if "POPLAR_LOG_LEVEL" not in os.environ:
    os.environ["POPLAR_LOG_LEVEL"] = "INFO"
os.environ.update({"TF_POPLAR_FLAGS": "--executable_cache_path=made", "TF_CPP_MIN_LOG_LEVEL": "2"})
os.environ["XLA_FLAGS"] = "--xla_dump_to=dump --xla_dump_hlo_as_text"
"""
START, LOAD = "Starting phase: graphConstruction", "Ending phase: Loading executable (duration"


@pytest.mark.slow
@idiom(
    "Logs and caches",
    "`os.environ['TF_POPLAR_FLAGS'] = '--executable_cache_path=...'` after `import ipu`",
)
@idiom("Logs and caches", "`os.environ['POPLAR_LOG_LEVEL'] = 'INFO'` after `import ipu`")
@idiom("Logs and caches", "`os.environ['XLA_FLAGS'] = '--xla_dump_to=...'` after `import ipu`")
def test_variables_that_are_set_after_the_import(process, tmp_path):
    text = PROGRAM.replace("SET", SET).replace("AFTER", "")
    first = process(text)
    assert first.stdout == "[[30.0, 80.0]]\n", first.stderr
    assert (first.stderr.count(START), first.stderr.count(LOAD)) == (1, 1)
    assert any(path.is_file() for path in (tmp_path / "made").rglob("*"))
    assert any("multiply" in path.read_text() for path in (tmp_path / "dump").glob("*.txt"))
    second = process(text)
    assert (second.stderr.count(START), second.stderr.count(LOAD)) == (0, 1), second.stderr


@pytest.fixture
def as_before(monkeypatch):
    """Restores what a program in this process changes."""
    for name in ("TF_POPLAR_FLAGS", "POPLAR_LOG_LEVEL", "MILLRACE_CACHE_DIR"):
        monkeypatch.setenv(name, "")
    yield
    use_cache(None)


@idiom("Logs and caches", "variables that are set between `IPUConfig()` and the first program")
def test_variables_that_are_set_late(program, as_before, caplog):
    after = "config.configure_ipu_system()\n" + SET.rsplit("os.environ", 1)[0]
    text = PROGRAM.replace("SET", "").replace("AFTER", after)
    with caplog.at_level("INFO", "millrace.phases"):
        assert program(text) == "[[30.0, 80.0]]\n"
    assert [r.message for r in caplog.records if r.message.startswith("Starting phase")] == [START]
    assert pathlib.Path("made").is_dir()
    assert any(path.is_file() for path in pathlib.Path("made").rglob("*"))


@idiom("Logs and caches", "`for` loops over caches: another `TF_POPLAR_FLAGS` before each part")
def test_another_cache_for_another_part(program, as_before):
    part = """
for k, rows in enumerate((2, 3)):
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path=part{k}"
    run(1.0, rows)
"""
    program(PROGRAM.replace("SET", "").replace("AFTER", "") + part)
    for k in range(2):
        assert any(path.is_file() for path in pathlib.Path(f"part{k}").rglob("*"))
