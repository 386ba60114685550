"""Real processes. Bounds on time are from above, for a machine that is busy."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from millrace.tools.cli import launch as launch_module
from millrace.tools.cli.launch import LaunchOptions, launch, share_cores

SCENES = pathlib.Path(__file__).parent / "launched_scenes.py"
SECONDS = 60


@pytest.fixture
def start(tmp_path, monkeypatch, capfd):
    """Launches a scene; returns its status, what was said, and the output of each process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*scene, processes=2, **options):
        said = []
        command = tuple(map(str, [SCENES, *scene]))
        status = launch(LaunchOptions(command, processes, **options), said.append)
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
    status, said, outputs = start("cores")
    assert status == 0
    assert [set(eval(output)) for output in outputs] == share_cores(sorted(before), 2)
    assert os.sched_getaffinity(0) == before
    assert "process 1 writes to" in said


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_or_all_of_them(start):
    outputs = start("cores", pin=False)[2]
    assert [set(eval(output)) for output in outputs] == [os.sched_getaffinity(0)] * 2


def test_more_processes_than_cores_are_announced(start):
    cores = len(os.sched_getaffinity(0))
    said = start("nothing", processes=cores + 1)[1]
    assert f"{cores + 1} processes share {cores} cores" in said


def test_what_a_process_is_told(start):
    status, said, outputs = start("told", "--x", "y")
    assert status == 0
    for index, output in enumerate(outputs):
        assert f"'num_processes': 2, 'process_id': {index}, 'devices': None" in output
        assert output.endswith("['--x', 'y']\n")
    assert "no process called millrace.distributed.initialize()" in said
    assert "ran 2 times, each alone. Add that line" in said


def test_no_hint_when_they_were_connected(start):
    assert "initialize()" not in start("connected")[1]


def test_the_first_that_failed_gives_the_status(start):
    status, said, _ = start("failure")
    assert status == 3
    assert "    last words 1\nmillrace launch: process 1 failed first (exit status 3)" in said


def test_a_signal_is_a_status_too(start):
    status, said, _ = start("killed")
    assert status == 137
    assert "process 0 failed first (SIGKILL)" in said


def test_the_note_of_a_process_knows_better_who_was_first(start):
    status, said, _ = start("note_of_a_failure")
    assert status == 5
    assert "process 1 failed first (exit status 5): no memory" in said


def test_a_note_that_nobody_finished_is_ignored(start):
    status, said, _ = start("unfinished_note")
    assert status == 3
    assert said.endswith("process 1 failed first (exit status 3)")


def test_who_does_not_end_is_killed(start):
    # SIGTERM may not do: libraries take it for their own ends.
    begin = time.monotonic()
    status, _, outputs = start("deaf", timeout=0.2)
    assert status == 3
    assert time.monotonic() - begin < SECONDS
    assert not is_running(int(outputs[0]))


def test_nothing_that_a_process_started_is_left(start):
    status, _, outputs = start("child")
    assert status == 0
    for output in outputs:
        wait_until(lambda pid=int(output): not is_running(pid))


def runs(tmp_path, index=0):
    return sorted(tmp_path.glob(f"millrace-launch-*/run-{index}-*"))


def test_all_processes_start_again_after_a_failure(start, tmp_path):
    status, said, outputs = start("failures", 2, restarts=3)
    assert status == 0
    failure = "process 1 failed first (exit status 5)"
    assert f"launch: restart 1 of 3: {failure}\nmillrace launch: restart 2 of 3: {failure}" in said
    assert "restart 3" not in said
    assert said.count("process 1 writes to") == 1
    assert outputs == ["run 0\nrun 1\nrun 2\n"] * 2
    assert len({path.read_text() for path in runs(tmp_path)}) == 3  # an address for each


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("SIGKILL", 137, "SIGKILL"),
        (143, 143, "exit status 143, as after SIGTERM"),
        ("SIGTERM", 143, "SIGTERM"),
    ],
)
def test_the_last_failure_counts_when_there_are_no_more_restarts(start, tmp_path, end, status, how):
    found, said, _ = start("failure_of_each_run", end, restarts=1)
    assert found == status
    assert said.count("restart 1 of 1: process 0 failed first") == 1
    assert f"restart 1 of 1: process 0 failed first ({how})\n" in said
    assert said.endswith(f"\nmillrace launch: process 0 failed first ({how})")
    assert len(runs(tmp_path)) == 2


def test_the_notes_of_a_run_end_with_it(start):
    status, said, _ = start("notes_of_the_first_run", restarts=1)
    assert status == 4
    assert "restart 1 of 1: process 1 failed first (exit status 3): no memory" in said
    assert said.endswith("process 0 failed first (exit status 4)")
    assert "no process called millrace.distributed.initialize()" in said


@pytest.fixture
def signals(tmp_path):
    """Sends signals to the launcher in this process, when all processes are ready."""
    threads = []

    def send(*numbers, ready=2, pause=0.0):
        def run():
            wait_until(lambda: len(list(tmp_path.glob("millrace-launch-*/ready-*"))) == ready)
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(pause)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    # These tests may themselves run in the background of a script, where SIGINT is ignored.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield send
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_goes_to_each_process_once_and_ends_the_run(start, signals, name, status):
    number = signal.Signals[name]
    signals(number, number)
    found, said, outputs = start("saves", name, restarts=3)
    assert found == status
    assert outputs == [f"received {number:d}\nsaved\n"] * 2
    assert f"ending processes 0, 1 ({name})" in said
    assert ": restart " not in said
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_processes_that_a_process_started_live_until_it_has_saved(start, signals):
    signals(signal.SIGTERM)
    assert [output.split("\n")[1] for output in start("reader")[2]] == ["None", "None"]


def test_who_does_not_end_after_a_signal_is_killed(start, signals):
    signals(signal.SIGTERM)
    status, said, _ = start("sleeps", "SIGTERM", 1, timeout=0.7)
    assert status == 143
    assert said.endswith("millrace launch: killed after 0.7 seconds: process 1")


def test_a_second_interrupt_kills_at_once(start, signals, monkeypatch):
    monkeypatch.setattr(launch_module, "_PATIENCE_SECONDS", 0.1)
    signals(signal.SIGINT, signal.SIGINT, pause=0.3)
    begin = time.monotonic()
    status, said, _ = start("sleeps", "SIGINT", 0, 1, timeout=1000)
    assert status == 130
    assert time.monotonic() - begin < SECONDS
    assert said.endswith("millrace launch: killed at once: processes 0, 1")


def test_no_restart_after_a_signal_that_came_while_the_others_ended(start, signals):
    signals(signal.SIGTERM, ready=1)
    status, said, _ = start("failure_and_signal", restarts=3)
    assert status == 143
    # Process 1 has ended by then, or is about to.
    assert "ending process 0 (SIGTERM)" in said or "ending processes 0, 1 (SIGTERM)" in said
    assert ": restart " not in said


@pytest.fixture
def command(tmp_path):
    """Starts `millrace launch` of a script that sleeps; gives it and the pids of both."""
    started = []
    # These tests may themselves run in the background of a script, where SIGINT is ignored.
    program = (
        "import signal, sys; from millrace.tools.cli.main import main\n"
        "sys.argv[0], handler = 'millrace', sys.argv.pop(1)\n"
        "signal.signal(signal.SIGINT, getattr(signal, handler))\nmain()"
    )

    def pids():
        return [int(path.read_text() or 0) for path in tmp_path.glob("millrace-*/pid-*")]

    def run(how="plain", on_interrupt="default_int_handler", **options):
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", program, on_interrupt),
                *("launch", "--processes", "2", str(SCENES), "wait", how),
            ],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **options,
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


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ends_with_all_processes_when_it_is_interrupted(command, number, status):
    process, pids = command()
    process.send_signal(number)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == status
    assert b"ending processes 0, 1 (SIG" in errors
    assert not any(map(is_running, pids))


@pytest.mark.slow
def test_a_launcher_that_ignores_interrupts_has_processes_that_do_not(command):
    process, pids = command(on_interrupt="SIG_IGN")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert process.poll() is None
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130  # of the process
    assert b"failed first (SIGINT)" in errors


@pytest.mark.slow
def test_an_interrupt_of_a_terminal_arrives_once(command, tmp_path):
    # A terminal sends it to the whole group of processes.
    process, pids = command("counts", start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    wait_until(lambda: len(list(tmp_path.glob("millrace-*/got-*"))) == 2)
    time.sleep(0.5)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    notes = [path.read_text() for path in tmp_path.glob("millrace-*/got-*")]
    assert notes == ["got\n"] * 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="of Linux only")
def test_connected_processes_end_with_a_launcher_that_was_killed(command):
    process, pids = command("ends with its launcher")
    assert len(pids) == 2
    process.kill()
    wait_until(lambda: not any(map(is_running, pids)))
