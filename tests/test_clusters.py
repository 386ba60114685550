"""The scripts for clusters in examples/clusters/."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest
import yaml

CLUSTERS = pathlib.Path(__file__).parent.parent / "examples" / "clusters"
SLURM = CLUSTERS / "slurm.sh"


@pytest.fixture(scope="module")
def kubernetes():
    """The objects in the file for Kubernetes, by kind."""
    documents = yaml.safe_load_all((CLUSTERS / "kubernetes.yaml").read_text())
    return {document["kind"]: document for document in documents}


def test_the_pods_of_kubernetes_come_back(kubernetes):
    job = kubernetes["Job"]["spec"]
    pod = job["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == 2
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is refused otherwise
    drained, preempted = job["podFailurePolicy"]["rules"]
    assert drained == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert preempted["action"] == "Ignore"
    (container,) = pod["containers"]
    expected = {"containerName": container["name"], "operator": "In", "values": [143]}
    assert preempted["onExitCodes"] == expected
    assert container["command"][0] == "python"  # no shell, which would not forward SIGTERM
    assert pod["shareProcessNamespace"] is True
    assert pod["terminationGracePeriodSeconds"] > 30


def test_what_the_job_of_kubernetes_refers_to_is_in_the_file(kubernetes):
    job = kubernetes["Job"]
    pod = job["spec"]["template"]["spec"]
    service = kubernetes["Service"]
    assert service["metadata"]["name"] == pod["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"
    (volume,) = pod["volumes"]
    claim = kubernetes["PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert pod["containers"][0]["volumeMounts"][0]["name"] == volume["name"]
    account = kubernetes["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account
    binding = kubernetes["RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == kubernetes["Role"]["metadata"]["name"]


def test_slurm_reads_all_of_its_options():
    lines = SLURM.read_text().splitlines()
    commands = [index for index, line in enumerate(lines) if line and not line.startswith("#")]
    options = [index for index, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert options[-1] < commands[0]  # Slurm ignores those below the first command
    text = [lines[index].removeprefix("#SBATCH ") for index in options]
    assert {"--requeue", "--open-mode=append", "--signal=TERM@120"} <= set(text)


@pytest.mark.parametrize(
    ("status", "restarts", "comes_back"),
    [
        (0, None, False),
        (1, None, True),
        (137, 8, True),
        (1, 9, False),
        (143, None, True),
        (143, 100, True),
    ],
)
def test_a_job_of_slurm_goes_back_into_the_queue(tmp_path, status, restarts, comes_back):
    for name, code in {"srun": f'echo "$@"; exit {status}', "scontrol": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    if restarts is not None:
        environment["SLURM_RESTART_COUNT"] = str(restarts)
    command = ["bash", str(SLURM), "train.py", "a b"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stderr
    first, *more = result.stdout.splitlines()
    assert first == "--kill-on-bad-exit=0 python train.py a b"
    run = (restarts or 0) + 1
    said = f"Run {run} ended with exit status {status}. The job goes back into the queue."
    assert more == ([said, "requeue 7"] if comes_back else [])


# Counts steps, and saves every fifth one and on SIGTERM.
TRAINING = """
import os, pathlib, signal, sys, time
import millrace
millrace.distributed.initialize()
import jax
import numpy as np
from jax.experimental import multihost_utils

received = []
signal.signal(signal.SIGTERM, lambda *_: received.append(True))
newest = pathlib.Path("newest")
step = int(newest.read_text()) if newest.exists() else 0
print("process", jax.process_index(), "of", jax.process_count(), "begins at", step, flush=True)
while step < 40:
    time.sleep(0.2)
    step += 1
    stop = bool(multihost_utils.process_allgather(np.array(bool(received))).any())
    if stop or step % 5 == 0:
        if jax.process_index() == 0:
            pathlib.Path("part").write_text(str(step))
            os.replace("part", newest)
        multihost_utils.sync_global_devices("saved")
    if stop:
        print("saved", step, flush=True)
        sys.exit(143)
    if step == 12 and jax.process_index() == 1 and "SLURM_RESTART_COUNT" not in os.environ:
        os.kill(os.getpid(), getattr(signal, sys.argv[1]))
print("done", flush=True)
"""


def has_slurm():
    if shutil.which("slurmd") is None or shutil.which("sinfo") is None:
        return False
    try:
        return (
            subprocess.run(["sinfo"], capture_output=True, timeout=5, check=False).returncode == 0
        )
    except subprocess.TimeoutExpired:  # its controller does not answer
        return False


@pytest.mark.slow
@pytest.mark.skipif(not has_slurm(), reason="no Slurm runs on this machine")
@pytest.mark.parametrize(
    ("name", "status", "begins"), [("SIGKILL", 137, [10]), ("SIGTERM", 143, [12, 13])]
)
def test_a_job_of_slurm_goes_on_from_its_newest_checkpoint(tmp_path, name, status, begins):
    def wait_until(condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)

    def output(*command):
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return result.stdout.strip()

    (tmp_path / "train.py").write_text(TRAINING)
    submit = ("sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--time=10", str(SLURM))
    job = output(*submit, "train.py", name)
    log = tmp_path / f"train-{job}.log"
    try:
        wait_until(lambda: output("squeue", "-h", "-j", job, "-o", "%r") == "BeginTime")
        assert f"Run 1 ended with exit status {status}. The job goes back" in log.read_text()
        output("scontrol", "update", f"JobId={job}", "StartTime=now")  # it waits for two minutes
        wait_until(lambda: log.read_text().count("done\n") == 2)
        second = log.read_text().rpartition("The job goes back into the queue.")[2]
        assert [second.count(f"of 2 begins at {step}\n") for step in begins].count(2) == 1
    finally:
        output("scancel", job)
