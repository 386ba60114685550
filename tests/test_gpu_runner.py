"""The runner of `make gpu`, with other steps in place of its own: it has to work where none are."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_runner", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_runner", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    return module


def step(gpu, name, code, seconds=30):
    class Coded(gpu.Step):
        def command(self, small):
            return [sys.executable, "-c", code]

    return Coded(name, f"what {name} is", "none.py", seconds=seconds)


def session(gpu, path):
    return gpu.Session(path / "results", "NVIDIA Some 80GB", dict(os.environ), small=False)


def statuses(path):
    (file,) = (path / "results").glob("*-some_80gb.json")
    return {name: each["status"] for name, each in json.loads(file.read_text()).items()}


def test_a_step_that_fails_is_noted_and_run_again_and_what_is_done_is_not(gpu, tmp_path, capfd):
    good = step(gpu, "good", "print('# One\\n\\na / b = 1.20x   claim >= 1x')")
    bad = step(gpu, "bad", "print('so far'); raise SystemExit(3)")
    session(gpu, tmp_path).run([bad, good], minutes=1)
    assert statuses(tmp_path) == {"bad": "failed with 3", "good": "ok"}
    (result,) = (tmp_path / "results").glob("*.txt")
    assert result.read_text() == "# One\n\na / b = 1.20x   claim >= 1x\n"
    assert "   so far\n" in capfd.readouterr().out  # printed as it goes

    again = session(gpu, tmp_path)
    mended = step(gpu, "bad", "print('# Two')")
    assert again.left([mended, good]) == [mended]
    again.run([mended, good], minutes=1)
    assert statuses(tmp_path) == {"bad": "ok", "good": "ok"}
    assert {"# One", "# Two"} <= set(result.read_text().splitlines())


def test_a_step_ends_at_its_limit_with_the_processes_that_it_has_started(gpu, tmp_path):
    code = (
        "import subprocess, sys\n"
        "print('begun', flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    session(gpu, tmp_path).run([step(gpu, "slow", code, seconds=1)], minutes=1)
    assert statuses(tmp_path) == {"slow": "stopped at its limit of 1 s"}


def test_what_there_is_no_time_for_is_left_to_the_next_call(gpu, tmp_path, capsys):
    one = session(gpu, tmp_path)
    one.run([step(gpu, "any", "pass")], minutes=0)
    assert "0 minutes are over. The same command continues." in capsys.readouterr().out
    assert len(one.left([step(gpu, "any", "pass")])) == 1


def test_without_a_gpu_it_says_so_and_exits_with_0():
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("No GPU: JAX ")
    assert done.stdout.endswith(" has only CPUs. Nothing to measure.\n")


def test_a_python_without_jax_is_named(gpu, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "PROBE", "raise ModuleNotFoundError('No module named jax')")
    assert gpu.probe(dict(os.environ), "gpu") is None
    assert "Set PY=... to a Python whose JAX has one." in capsys.readouterr().out


def test_a_directory_without_wheels_is_refused(gpu, tmp_path):
    with pytest.raises(SystemExit, match="There are no wheels in"):
        gpu.install(str(tmp_path), "site")


def test_every_step_names_a_script_that_is_there_and_the_tests_marked_gpu(gpu, capsys, monkeypatch):
    scripts = {each.script for each in gpu.STEPS} - {"pytest"}
    assert all((ROOT / "benchmarks" / script).exists() for script in scripts)
    assert gpu.gpu_tests() == [
        "tests/millrace_ipu/ipu/test_f47_on_a_device.py",
        "tests/pipelines/test_host_memory.py",
    ]
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--dry-run"])
    assert gpu.main() == 0
    listed = capsys.readouterr().out
    assert [n for n in (each.name for each in gpu.STEPS) if f"{n} " not in listed] == []


@pytest.mark.parametrize(
    ("device", "name"),
    [("NVIDIA H100 80GB HBM3", "h100_80gb_hbm3"), ("cpu", "cpu"), ("Radeon (TM)", "radeon_tm")],
)
def test_the_name_of_a_device_in_a_file_name(gpu, device, name):
    assert gpu.slug(device) == name


def test_when_it_is_ended_its_step_ends_too():
    command = [sys.executable, "-u", str(ROOT / "tests" / "follow_a_step.py"), str(SCRIPT)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid = next(int(line) for line in runner.stdout if line.strip().isdigit())
    runner.terminate()
    assert runner.wait(timeout=10) == 143
    runner.stdout.close()
    assert not pathlib.Path(f"/proc/{pid}").exists()
