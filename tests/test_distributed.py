"""Runs of two processes, each a few seconds long: JAX is imported in every one.

Bounds on time are from above, for a machine that is busy. What notices a death is the line
between the processes: heartbeats would need longer than SECONDS.
"""

import ast
import logging
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import jax
import pytest

from case_marks import exhaustive
from millrace import distributed
from millrace.errors import DeviceError, OptionError, ProcessError
from millrace.tools.cli.launch import LaunchOptions, launch

HERE = pathlib.Path(__file__).parent
SECONDS = 60


@pytest.fixture
def start(tmp_path, monkeypatch, capfd):
    """Runs a scene in two processes; returns the status, what was said, and both outputs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def run(*scene, **options):
        said = []
        script = str(HERE / "distributed_scenes.py"), *map(str, scene)
        status = launch(LaunchOptions(script, 2, timeout=SECONDS, **options), said.append)
        (log,) = tmp_path.glob("millrace-launch-*/process-1.log")
        captured = capfd.readouterr()
        outputs = captured.out + captured.err, log.read_text()
        return status, "\n".join(said), outputs, time.time()

    return run


@pytest.mark.slow
def test_two_processes_compute_and_compare_together(start):
    status, said, outputs, _ = start("comparison", devices=2)
    assert status == 0, (said, outputs)
    assert "initialize()" not in said
    found = [
        ast.literal_eval(line.removeprefix("FOUND "))
        for output in outputs
        for line in output.splitlines()
        if line.startswith("FOUND ")
    ]
    assert [one[0] for one in found] == [0, 1]
    assert found[0][1:] == found[1][1:]
    assert found[0][1:5] == (2, 4, 2, 0 + 1 + 2 + 3)
    same, other = found[0][-2:]
    assert same is None
    assert other.startswith("PlanError: The processes of this run do not have the same weights.")
    assert "process 0: hash0; process 1: hash1. Call keras.utils.set_random_seed(1)" in other
    assert "In 0.5 seconds, these did not come to comparison 3: 1." in outputs[0]


@pytest.mark.slow
def test_an_error_in_one_ends_the_other_that_waits_for_it(start):
    status, said, outputs, end = start("error_in_one")
    assert status == 1
    assert "process 1 failed first (exit status 1): ValueError: no luck" in said
    assert 'raise ValueError("no luck")\n' in outputs[1].partition("Traceback")[2]
    assert "failed first" not in outputs[1]
    assert ", pid " in outputs[0].partition("millrace: process 1 (host ")[2]
    assert "failed first: ValueError: no luck (" in outputs[0]
    assert "millrace: process 0 of 2 ends with it." in outputs[0]
    assert "Traceback" not in outputs[0]  # that of the connection that was lost
    assert end - float(outputs[1].partition("TIME ")[2].split()[0]) < SECONDS / 2


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_process_ends_the_other(start, index):
    status, said, outputs, end = start("killed", index)
    assert status == 137
    assert f"process {index} failed first (SIGKILL): it died without a Python error" in said
    other = outputs[1 - index]
    assert f"millrace: process {index} (host " in other
    assert "failed first: it died without a Python error. It was killed (SIGKILL, " in other
    assert "Traceback" not in other
    assert "EXPLAINED None" not in other
    assert end - float(outputs[index].partition("TIME ")[2].split()[0]) < SECONDS / 2


@pytest.mark.slow
def test_strangers_at_the_port_of_jaxs_coordinator(start):
    """After the start, the port is JAX's: it drops garbage, too, and the run continues."""
    status, said, outputs, _ = start("strangers")
    assert status == 0, (said, outputs)
    assert all("done\n" in output for output in outputs), outputs


@pytest.mark.slow
def test_an_exit_status_is_an_error_too(start):
    status, said, outputs, _ = start("exit_of_one", 1, 3)
    assert status == 3
    assert "process 1 failed first (exit status 3): it ended with exit status 3." in said
    assert "failed first: it ended with exit status 3." in outputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 1])
def test_preempted_processes_leave_one_after_the_other(start, late):
    status, said, outputs, end = start("exits_in_turn", late)
    assert status == 143
    assert said.endswith(" failed first (exit status 143, as after SIGTERM)")
    assert "failed first" not in "".join(outputs)
    left = [float(output.partition("LEFT ")[2].split()[0]) for output in outputs]
    assert left[late] - left[1 - late] > 1
    assert end - max(left) < SECONDS / 2


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, exhaustive(1)])
def test_a_process_that_was_preempted_alone_ends_the_other(start, index):
    status, said, outputs, _ = start("exit_of_one", index, 143)
    text = "it was preempted (exit status 143), and the others continued."
    assert status == 143
    assert f"process {index} failed first (exit status 143, as after SIGTERM): {text}" in said
    assert f"failed first: {text}" in outputs[1 - index]


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1])
def test_sigterm_ends_a_process_that_does_not_handle_it(start, index):
    status, said, outputs, _ = start("sigterm", index)
    assert status == 143
    assert f"process {index} failed first (SIGTERM): it died without a Python error" in said
    assert f"millrace: process {index} (host " in outputs[1 - index]
    assert "It was killed (SIGKILL, SIGTERM)" in outputs[1 - index]


@pytest.mark.slow
def test_the_handler_of_jaxs_preemption_service():
    """A script that calls `jax.distributed.initialize` itself: JAX handles SIGTERM, in C++."""
    command = [sys.executable, str(HERE / "preemption_script.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert result.returncode == -signal.SIGTERM, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, exhaustive(1)])
def test_a_process_that_is_done_waits_for_the_other(start, index):
    status, said, outputs, _ = start("late_end", index)
    assert status == 0, (said, outputs)
    assert all("done\n" in output for output in outputs), outputs


@pytest.fixture
def before_jax(monkeypatch):
    """As if JAX had not started yet, and no cluster had started this process."""
    monkeypatch.setattr(distributed, "backends_are_initialized", lambda: False)
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)


def test_after_jax_has_started():
    jax.devices()
    with pytest.raises(DeviceError, match=r"already started.*Move the line\n.*initialize\(\)\nab"):
        distributed.initialize()


def test_twice(before_jax, monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(ProcessError, match=r"Process 0 of 1 is connected already. Call .* once"):
        distributed.initialize()


@pytest.mark.parametrize(
    "arguments",
    [{}, {"coordinator_address": "node1:1234", "num_processes": 1, "process_id": 0}],
)
def test_a_run_of_one_process_does_nothing(before_jax, caplog, arguments):
    with caplog.at_level(logging.INFO, "millrace"):
        distributed.initialize(**arguments)
    assert "it runs alone" in caplog.text


def test_a_worker_of_multiprocessing_is_no_process_of_the_run(monkeypatch, caplog):
    monkeypatch.setattr(distributed.multiprocessing, "parent_process", lambda: object())
    with caplog.at_level(logging.INFO, "millrace"):
        distributed.initialize("node1:1234", 2, 0)
    assert "does nothing in a worker" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("node1:1234",), "To connect processes, set num_processes and process_id, too"),
        ((None, 2, 0), r"Received: .*'num_processes': 2.* Set coordinator_address, or start the"),
        (("node1:1234", 2, 2), r"from 0 to num_processes - 1 = 1\. Received: 2\."),
        (("node1", 2, 0), r"such as 'node1:1234'\. Received: 'node1'\."),
    ],
)
def test_incomplete_or_wrong_arguments(before_jax, arguments, message):
    with pytest.raises(OptionError, match=message):
        distributed.initialize(*arguments)


def test_an_address_to_listen_on_that_is_none(before_jax, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "10.0.0.1")
    message = r"JAX_COORDINATOR_BIND_ADDRESS must be a host and a port.* Received: '10\.0\.0\.1'"
    with pytest.raises(OptionError, match=message):
        distributed.initialize("node1:1234", 2, 0)


class StopHereError(Exception):
    """Ends `initialize` where processes would meet."""


@pytest.fixture
def met(monkeypatch):
    """The rendezvous to which `initialize` comes."""
    found = []

    def meet(rendezvous, *_):
        found.append(rendezvous)
        raise StopHereError

    monkeypatch.setattr(distributed, "meet", meet)
    return found


@pytest.fixture
def ray_worker(before_jax, monkeypatch):
    worker = distributed.RayWorker(1, 2)
    monkeypatch.setattr(distributed.RayWorker, "this", lambda: worker)
    monkeypatch.setattr(
        distributed.RayWorker, "rendezvous", lambda self: ("10.0.0.1:7", "a run"), raising=True
    )


def test_a_worker_of_ray(ray_worker, met):
    with pytest.raises(StopHereError):
        distributed.initialize()
    (rendezvous,) = met
    assert (rendezvous.address, rendezvous.index, rendezvous.count) == ("10.0.0.1:7", 1, 2)
    assert rendezvous.run == "a run"


def test_arguments_come_before_ray(ray_worker, met):
    with pytest.raises(StopHereError):
        distributed.initialize("127.0.0.1:7", 3, 2)
    assert met[0].count == 3


def test_a_worker_of_ray_that_is_connected_already(ray_worker, monkeypatch, met):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(
        StopHereError
    ):  # JaxTrainer has connected JAX: the reports of failures are missing
        distributed.initialize()
    monkeypatch.setattr(distributed, "ends_together", lambda: True)
    with pytest.raises(ProcessError, match="is connected already"):
        distributed.initialize()


def test_what_the_launcher_said_is_taken_once(before_jax, monkeypatch, tmp_path):
    monkeypatch.setattr(distributed.Launched, "end_with_launcher", lambda self: None)
    told = distributed.Launched("127.0.0.1:1", 1, 0, None, str(tmp_path), os.getpid(), "a run")
    for name, value in told.to_environment().items():
        monkeypatch.setenv(name, value)
    distributed.initialize()
    assert (tmp_path / "initialized-0").exists()
    assert "MILLRACE_LAUNCH" not in os.environ
