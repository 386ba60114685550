"""Real processes. Bounds on time are from above, for a machine that is busy."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from millrace.cli.launch import LaunchOptions, launch, share_cores

# For scripts that do without JAX, which takes seconds to import.
WHO = "import json, os; told = json.loads(os.environ['MILLRACE_LAUNCH']); i = told['process_id']\n"
SECONDS = 60


@pytest.fixture
def start(tmp_path, monkeypatch, capfd):
    """Launches a script; returns its status, what was said, and the output of each process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = tmp_path / "script.py"

    def run(code, processes=2, arguments=(), **options):
        said = []
        script.write_text(WHO + code)
        status = launch(LaunchOptions((str(script), *arguments), processes, **options), said.append)
        (directory,) = tmp_path.glob("millrace-launch-*")
        logs = [directory / f"process-{index}.log" for index in range(1, processes)]
        return status, "\n".join(said), [capfd.readouterr().out, *(log.read_text() for log in logs)]

    return run


def is_running(pid):
    """Whether a process exists that has not ended, ended ones being kept for their parents."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_cores_are_shared_out():
    assert share_cores([0, 1, 2, 5, 6], 2) == [{0, 1}, {2, 5, 6}]
    assert share_cores([3, 4], 2) == [{3}, {4}]
    assert share_cores([3, 4], 3) == [{3}, {4}, {3}]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_each_process_has_its_own_cores(start):
    before = os.sched_getaffinity(0)
    status, said, outputs = start("print(sorted(os.sched_getaffinity(0)))")
    assert status == 0
    assert [set(eval(output)) for output in outputs] == share_cores(sorted(before), 2)
    assert os.sched_getaffinity(0) == before
    assert "process 1 writes to" in said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_or_all_of_them(start):
    outputs = start("print(os.sched_getaffinity(0))", pin=False)[2]
    assert [eval(output) for output in outputs] == [os.sched_getaffinity(0)] * 2


def test_more_processes_than_cores_are_announced(start):
    cores = len(os.sched_getaffinity(0))
    said = start("", processes=cores + 1)[1]
    assert f"{cores + 1} processes share {cores} cores" in said


def test_what_a_process_is_told(start):
    status, said, outputs = start("import sys; print(told, sys.argv[1:])", arguments=["--x", "y"])
    assert status == 0
    for index, output in enumerate(outputs):
        assert f"'num_processes': 2, 'process_id': {index}, 'devices': None" in output
        assert output.endswith("['--x', 'y']\n")
    assert "no process called millrace.distributed.initialize()" in said
    assert "ran 2 times, each alone. Add that line" in said


def test_no_hint_when_they_were_connected(start):
    code = "open(os.path.join(told['directory'], f'initialized-{i}'), 'w')"
    assert "initialize()" not in start(code)[1]


def test_the_first_that_failed_gives_the_status(start):
    status, said, _ = start("print('last words', i)\nif i == 1: raise SystemExit(3)")
    assert status == 3
    assert "    last words 1\nmillrace launch: process 1 failed first (exit status 3)" in said


def test_a_signal_is_a_status_too(start):
    status, said, _ = start("if i == 0: os.kill(os.getpid(), 9)")
    assert status == 137
    assert "process 0 failed first (SIGKILL)" in said


def test_the_note_of_a_process_knows_better_who_was_first(start):
    code = (
        "import time\n"
        "if i == 1: open(os.path.join(told['directory'], 'failed'), 'w').write('1\\nno memory')\n"
        "time.sleep(i)\nraise SystemExit(4 + i)"
    )
    status, said, _ = start(code)
    assert status == 5
    assert "process 1 failed first (exit status 5): no memory" in said


def test_who_does_not_end_is_killed(start):
    # SIGTERM may not do: libraries take it for their own ends.
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if i == 1: raise SystemExit(3)\nprint(os.getpid(), flush=True)\ntime.sleep(1000)"
    )
    begin = time.monotonic()
    status, _, outputs = start(code, timeout=0.2)
    assert status == 3
    assert time.monotonic() - begin < SECONDS
    assert not is_running(int(outputs[0]))


def test_nothing_that_a_process_started_is_left(start):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "print(child.pid)\nchild.returncode = 0"
    )
    status, _, outputs = start(code)
    assert status == 0
    for output in outputs:
        wait_until(lambda pid=int(output): not is_running(pid))


@pytest.fixture
def command(tmp_path):
    """Starts `millrace launch` of a script that sleeps; gives it and the pids of both."""
    script, started = tmp_path / "script.py", []
    # These tests may themselves run in the background of a script, where SIGINT is ignored.
    program = (
        "import signal, sys; from millrace.cli.main import main\n"
        "sys.argv[0], handler = 'millrace', sys.argv.pop(1)\n"
        "signal.signal(signal.SIGINT, getattr(signal, handler))\nmain()"
    )

    def pids():
        return [int(path.read_text() or 0) for path in tmp_path.glob("millrace-*/pid-*")]

    def run(code, on_interrupt="default_int_handler"):
        script.write_text(
            WHO + code + "\nprint(os.getpid(), flush=True)\nimport time\n"
            "open(told['directory'] + f'/pid-{i}', 'w').write(str(os.getpid()))\n"
            "time.sleep(1000)\n"
        )
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", program, on_interrupt),
                *("launch", "--processes", "2", str(script)),
            ],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        wait_until(lambda: process.poll() is not None or sum(map(bool, pids())) == 2)
        return process, pids()

    yield run
    for process in started:
        process.kill()
        for pid in filter(is_running, pids()):
            os.kill(pid, signal.SIGKILL)  # or it would keep the pipes open
        process.communicate()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ends_with_all_processes_when_it_is_interrupted(command, number, status):
    process, pids = command("")
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == status
    assert b"ending 2 processes" in errors
    assert not any(map(is_running, pids))


def test_processes_are_interrupted_where_the_launcher_ignores_interrupts(command, tmp_path):
    code = (
        "import atexit\n"  # runs when a process ends by an exception, not when it is killed
        "atexit.register(lambda: open(told['directory'] + f'/ended-{i}', 'w').close())"
    )
    process, _ = command(code, on_interrupt="SIG_IGN")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 143
    assert len(list(tmp_path.glob("millrace-*/ended-*"))) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux only")
def test_connected_processes_end_with_a_launcher_that_was_killed(command):
    process, pids = command(
        "from millrace.processes.agreement import Launched; Launched.take().end_with_launcher()"
    )
    assert len(pids) == 2
    process.kill()
    wait_until(lambda: not any(map(is_running, pids)))
