"""Programs that leave records, run as users run them."""

import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import millrace
from millrace.run.schedules.table import make_schedule
from millrace.tools.reports.page import page
from quick_compiler import compiler

pytestmark = pytest.mark.slow

SCRIPT = pathlib.Path(__file__).parent / "recorded_script.py"
MILLRACE = str(pathlib.Path(sys.executable).with_name("millrace"))


def data_of(text):
    """Returns what a page shows of its run."""
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    return json.loads(data)["runs"][0]


def begin(tmp_path, kind, *command):
    environ = {**compiler.environment(), "JAX_PLATFORMS": "cpu", "MILLRACE_REPORT_DIR": "runs"}
    return subprocess.Popen(
        [*(command or [sys.executable]), str(SCRIPT), kind, "--key=hunter2"],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_program_has_left_its_executions(tmp_path):
    process = begin(tmp_path, "endless")
    executions, deadline = [], time.monotonic() + 60
    while len(executions) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
        if list(tmp_path.glob("runs/*/executions.jsonl")):
            executions = millrace.records.load(tmp_path / "runs").executions  # while it runs
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run = millrace.records.load(tmp_path / "runs")
    _, loop = run.loops
    assert (loop.mode, loop.outcome, loop.ended, loop.parameters) == ("train", "running", 0, 5)
    before = data_of((run.path / "report.html").read_text())
    assert before["outcome"] == "running"  # when it was written, after the first fit
    now = data_of(page([run]))
    assert (now["outcome"], now["loops"][1]["outcome"]) == ("killed", "killed")
    assert sum(sample.executions for sample in run.executions) > 4
    losses = [each.logs["loss"] for each in run.epochs if each.loop == loop.number]
    assert losses[0] > losses[-1]
    assert run.path.name.startswith("recorded_script-")
    assert run.processes[0].script.endswith("recorded_script.py")


def test_a_program_says_where_its_page_is_when_it_ends(tmp_path):
    process = begin(tmp_path, "ends")
    _, errors = process.communicate()
    run = millrace.records.load(tmp_path / "runs")
    assert process.returncode == 3
    assert errors.splitlines()[-1] == f"Report of this run: {run.path / 'report.html'}"
    data = data_of((run.path / "report.html").read_text())
    assert (data["outcome"], data["loops"][0]["outcome"]) == ("failed", "failed")
    assert not [p for p in run.path.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert (run.loops[0].outcome, run.loops[0].error) == ("failed", "SystemExit: 3")


def test_processes_of_a_run_share_a_directory(tmp_path):
    command = MILLRACE, "launch", "--processes", "2"
    _, errors = begin(tmp_path, "processes", *command).communicate(timeout=300)
    (directory,) = (tmp_path / "runs").iterdir()
    run = millrace.records.load(directory)
    assert [(each.process, each.processes) for each in run.processes] == [(0, 2), (1, 2)], errors
    loops = [(loop.process, loop.number, loop.outcome, loop.steps) for loop in run.loops]
    assert sorted(loops) == [(0, 0, "finished", 8), (1, 0, "finished", 8)]
    assert (directory / "report.html").exists()


def test_a_trace_has_the_tasks_of_all_processes(tmp_path):
    began = time.time()
    command = MILLRACE, "launch", "--processes", "2"
    _, errors = begin(tmp_path, "pipeline", *command).communicate(timeout=300)
    (directory,) = (tmp_path / "runs").iterdir()
    traces = millrace.records.load(directory).traces
    assert traces, errors
    rows = make_schedule("1f1b_slack", 2, 4, (0, 1))  # the default between processes
    for trace in traces:
        for group, row in enumerate(rows):
            measured = [str(span) for span in trace.spans if span.group == group]
            assert measured == list(map(str, row))
        assert began < trace.began < trace.began + trace.seconds < time.time()
