"""F66, F67, F75: one process compiles programs, another one loads them, and the log tells both."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from millrace.base.threads.scoped_value import Notes
from millrace.compilation.cache.use import use_cache
from millrace.errors import OptionError, PlanError
from millrace_ipu import ipu
from millrace_ipu.ipu import environment
from millrace_ipu.tensorflow import no_operation

START, LOAD = "Starting phase: graphConstruction", "Loading executable"

SCRIPT = pathlib.Path(__file__).parent / "executables_script.py"


class Run:
    """The output of a process."""

    def __init__(self, process):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err[-3000:]
        self.printed, self.log = json.loads(out.splitlines()[-1]), err
        self.first, self.warm = err.split("WARM")


def start(directory, *arguments):
    environ = {k: v for k, v in os.environ.items() if k not in ("MILLRACE_CACHE_DIR", "XLA_FLAGS")}
    environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={directory / 'made' / 'cache'}"
    environ["POPLAR_LOG_LEVEL"] = "INFO"
    directory.mkdir(exist_ok=True)
    command = [sys.executable, str(SCRIPT), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True)


def files(directory):
    return [path for path in (directory / "made").rglob("*") if path.is_file()]


@pytest.fixture
def no_cache():
    yield
    use_cache(None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Returns three runs: ahead of time, with its files, and one without files."""
    directory = tmp_path_factory.mktemp("runs")
    at_once = start(directory, "PRE_COMPILE"), start(directory / "other")
    ahead, alone = map(Run, at_once)
    saved = files(directory)
    return ahead, saved, Run(start(directory)), alone


@pytest.mark.slow
def test_f66_a_second_process_loads_and_does_not_compile(runs):
    _, saved, loaded, alone = runs
    assert alone.printed["origins"] == ["compiled", "compiled"]
    assert len(saved) >= 2
    assert loaded.printed["origins"] == ["cache", "cache"]
    assert loaded.printed["result"] == alone.printed["result"]


@pytest.mark.slow
def test_f66_without_its_files_it_compiles_again_with_equal_results(tmp_path, no_cache, system):
    use_cache(tmp_path)
    system(1)
    x = np.arange(3, dtype=np.float32)
    results, origins = [], []
    for _ in range(3):
        strategy = ipu.ipu_strategy.IPUStrategy()
        results.append(strategy.run(jax.jit(lambda x: x * 5.625), [x]).tolist())
        origins.append(strategy.compile_log[0].origin.value)
        jax.clear_caches()
        if len(origins) == 2:
            shutil.rmtree(tmp_path)
    assert origins == ["compiled", "cache", "compiled"]
    assert results == [[0.0, 5.625, 11.25]] * 3


@pytest.mark.slow
def test_f67_the_log_tells_compiled_programs_from_loaded_ones(runs):
    *_, loaded, again = runs
    assert again.first.count(START) == 2
    assert again.first.count(f"Ending phase: {LOAD} (duration 0 ms; diff RSS: ") == 2
    assert START not in loaded.log
    assert loaded.first.count(f": {LOAD}\n") == 2
    assert " MB)\n" in loaded.first


@pytest.mark.slow
def test_f67_warm_programs_log_nothing(runs):
    *_, loaded, again = runs
    for each in (loaded, again):
        assert START not in each.warm
        assert LOAD not in each.warm


@pytest.mark.slow
def test_f75_ahead_of_time_nothing_runs_and_the_files_are_named(runs):
    ahead, saved, loaded, _ = runs
    losses, total = ahead.printed["result"]
    assert (losses, total) == ([0.0, 0.0], 0.0)
    assert loaded.printed["result"][1] == 64.0
    lines = [line for line in ahead.log.splitlines() if line.startswith("PRE_COMPILE: ")]
    programs = ["double", "predict_run", "test_run", "train_run"]
    assert sorted(line.split()[1] for line in lines) == programs
    assert {pathlib.Path(line.split()[-1]) for line in lines} <= set(saved)


@pytest.mark.slow
def test_f75_the_real_run_starts_without_compiling(runs):
    assert runs[2].printed["origins"] == ["cache", "cache"]


def test_f75_without_a_directory_it_fails_a_precondition(no_cache):
    use_cache(None)
    config = ipu.config.IPUConfig()
    config.device_connection.type = ipu.config.DeviceConnectionType.PRE_COMPILE
    with pytest.raises(PlanError, match=r"precondition.*Set TF_POPLAR_FLAGS=.*executable_cache"):
        config.configure_ipu_system()


def test_f66_unknown_flags_are_refused_with_a_list_of_all():
    with pytest.raises(OptionError, match=r"unknown flag '--executable_cach=x'") as error:
        environment.cache_path("--executable_cach=x")
    assert "--executable_cache_path" in str(error.value)
    assert "--use_ipu_model" in str(error.value)
    with pytest.raises(OptionError, match=r"without a directory. Set --executable_cache_path=D"):
        environment.cache_path("--executable_cache_path")


def test_f66_other_flags_of_the_ipu_warn_once(caplog, capsys, monkeypatch):
    monkeypatch.setattr(no_operation, "notes", Notes())
    for _ in range(2):
        path = environment.cache_path("--max_compilation_threads=4 --executable_cache_path='/a b'")
    assert path == "/a b"
    (record,) = caplog.records
    assert "--max_compilation_threads has no effect" in record.getMessage()
    assert environment.cache_path("--help") is None
    assert capsys.readouterr().out.count("  --") == len(environment.FLAGS)


def test_f66_the_environment_is_read_when_it_changes(monkeypatch, no_cache, caplog):
    told = []
    monkeypatch.setattr(environment, "use_cache", told.append)
    monkeypatch.setattr(environment, "_in_force", [("", "", os.environ.get("XLA_FLAGS", ""))])
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--executable_cache_path=somewhere")
    environment.read_variables()
    environment.read_variables()
    assert told == ["somewhere"]
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--executable_cache_path=elsewhere")
    environment.read_variables()
    assert told == ["somewhere", "elsewhere"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=late")
    environment.read_variables()
    environment.read_variables()
    (record,) = [each for each in caplog.records if "XLA_FLAGS" in each.getMessage()]
    assert "=--xla_dump_to=late has no effect: XLA has read this" in record.getMessage()
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--executable_cache")
    for _ in range(2):
        with pytest.raises(OptionError, match="unknown flag '--executable_cache'"):
            environment.read_variables()
