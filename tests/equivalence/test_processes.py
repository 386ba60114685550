"""Pipelines and replicas over processes train as one device does; a process that dies ends all."""

import pathlib
import re
import signal
import subprocess
import sys
import zipfile

import keras
import pytest

from case_marks import exhaustive
from quick_compiler import compiler

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).parent / "process_script.py"
SCENES = pathlib.Path(__file__).parent / "process_scenes.py"
LAUNCH = [str(pathlib.Path(sys.executable).with_name("millrace")), "launch", "--processes", "2"]
QUICK = [
    "replicas that share out state and weights",
    "tied weights",
    "stages that cross in both directions",
]


def launch(script, *arguments, devices=1, timeout=500, cwd=None):
    return subprocess.run(
        [*LAUNCH, "--devices-per-process", str(devices), str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=compiler.environment(),
        cwd=cwd,
    )


def same(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return re.findall(r"^same: (.*) \(", result.stdout, re.MULTILINE)


def test_numbers_over_processes_are_those_of_one_device():
    assert same(launch(SCRIPT, *QUICK, devices=2)) == QUICK


@pytest.mark.exhaustive
def test_all_ways_to_lie_over_processes():
    found = same(launch(SCRIPT, devices=2, timeout=1200))
    assert found == re.findall(r'^    "(.*?)": \(', SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("scene", "what"),
    [
        exhaustive("other_weights", "weights"),
        ("other_options", "options"),
        exhaustive("other_model", "model"),
        ("other_weights_of_a_model_that_fit_builds", "weights"),
        ("other_model_that_fit_builds", "model"),
    ],
)
def test_processes_that_differ_say_so(scene, what):
    result = launch(SCENES, scene)
    assert result.returncode == 1
    assert f"do not have the same {what}" in result.stderr
    assert "process 0:" in result.stderr
    assert "process 1:" in result.stderr


def test_a_detached_pipeline_is_whole_in_every_process():
    result = launch(SCENES, "detached")
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_budget_is_kept_by_the_fullest_device_of_all_processes():
    result = launch(SCENES, "budgets", devices=2)
    assert result.returncode == 0, result.stdout + result.stderr
    (log,) = re.findall(r"process 1 writes to (\S+)", result.stdout + result.stderr)
    printed = result.stdout, pathlib.Path(log).read_text()
    choices = [re.findall(r"chosen: (on the fullest.*?) \(", each) for each in printed]
    assert len(choices[0]) == 2
    assert choices[0] == choices[1]  # with the same peak
    assert all("choice" in each for each in choices[0])
    refusals = [re.findall(r"refused: (.*)", each)[0] for each in printed]
    assert all("The fullest device of this process has" in each for each in refusals)
    least = [re.findall(r"the smallest takes ([\d,]+)", each) for each in refusals]
    assert least[0] == least[1]
    assert refusals[0] != refusals[1]  # each about its own stages


@pytest.mark.parametrize("victim", [exhaustive(0), 1])
def test_a_process_that_dies_ends_the_others_and_leaves_the_last_checkpoint(tmp_path, victim):
    result = launch(SCENES, "death", str(victim), timeout=300, cwd=tmp_path)
    assert result.returncode == 128 + signal.SIGKILL
    assert re.search(rf"process {victim} \(.*\) failed first", result.stderr + result.stdout) or (
        f"process {victim} failed first" in result.stderr + result.stdout
    )
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert file.testzip() is None
    assert keras.models.load_model(tmp_path / "model.keras").count_params() == 25


def test_a_pipeline_says_what_its_time_went_to_and_keeps_its_bits(tmp_path):
    result = launch(SCENES, "seconds", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(
        r"pipeline, updates +[\d.]+ s +99 updates\n  waiting for devices", result.stdout
    )


def test_the_error_of_a_first_step_is_the_one_that_is_raised():
    result = launch(SCENES, "failure", timeout=200)
    assert "not one of the rows" in result.stdout, result.stdout + result.stderr


def test_nobody_waits_for_a_process_that_has_caught_the_error_of_its_stage(tmp_path):
    result = launch(SCENES, "failure_and_another_fit", timeout=200, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "caught TaskError Task 0F0 failed" in result.stdout
    assert "again 0 True" in result.stdout
    second = (tmp_path / "process-1").read_text()
    assert "ProcessError Process 0 has left an update of the pipeline: " in second
    assert "TaskError: Task 0F0 failed" in second
    assert "again 1 True" in second


def test_only_the_first_process_shows_a_bar():
    result = launch(SCENES, "progress")
    assert result.returncode == 0, result.stderr
    assert "Epoch 2/2" in result.stdout
    (log,) = re.findall(r"process 1 writes to (\S+)", result.stdout + result.stderr)
    written = pathlib.Path(log).read_text()
    assert "1 ['loss']" in written
    assert "is trained by several processes, and is not planned" in result.stdout + result.stderr
    assert "Epoch" not in written


def test_devices_of_other_processes_only():
    result = launch(SCENES, "device_of_the_first_process")
    assert result.returncode == 1
    assert "belongs to this process, number 1" in result.stderr + result.stdout
