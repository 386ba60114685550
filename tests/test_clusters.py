"""The scripts for clusters in examples/clusters/."""

import contextlib
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

import slurm

CLUSTERS = pathlib.Path(__file__).parent.parent / "examples" / "clusters"
SLURM = CLUSTERS / "slurm.sh"


def objects(name):
    """The objects in a file for Kubernetes, by kind."""
    documents = yaml.safe_load_all((CLUSTERS / name).read_text())
    return {document["kind"]: document for document in documents}


def job_of(found):
    """The spec of the Job in a file, as such or in a JobSet."""
    if "Job" in found:
        return found["Job"]["spec"]
    (replicated,) = found["JobSet"]["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    return replicated["template"]["spec"]


MANIFESTS = {"kubernetes.yaml": "Ignore", "jobset.yaml": "FailJob"}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_pods_of_kubernetes_come_back(name):
    job = job_of(objects(name))
    pod = job["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == 2
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy is refused otherwise
    drained, preempted = job["podFailurePolicy"]["rules"]
    assert drained == {
        "action": MANIFESTS[name],
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }
    assert preempted["action"] == MANIFESTS[name]
    (container,) = pod["containers"]
    expected = {"containerName": container["name"], "operator": "In", "values": [143]}
    assert preempted["onExitCodes"] == expected
    assert container["command"][0] == "python"  # no shell, which would not forward SIGTERM
    assert pod["shareProcessNamespace"] is True
    assert pod["terminationGracePeriodSeconds"] > 30


def test_a_job_set_comes_back_after_each_end_of_its_job():
    job_set = objects("jobset.yaml")["JobSet"]
    policy = job_set["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert job_of({"JobSet": job_set})["backoffLimit"] == 0
    # JAX looks for process 0 in the service that has the name of the set, as it has by default.
    assert "network" not in job_set["spec"]
    assert "subdomain" not in job_of({"JobSet": job_set})["template"]["spec"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_the_job_of_kubernetes_refers_to_is_in_the_file(name):
    found = objects(name)
    pod = job_of(found)["template"]["spec"]
    if name == "kubernetes.yaml":
        service = found["Service"]
        assert service["metadata"]["name"] == pod["subdomain"]
        assert service["spec"]["selector"] == {"job-name": found["Job"]["metadata"]["name"]}
        assert service["spec"]["clusterIP"] == "None"
    (volume,) = pod["volumes"]
    claim = found["PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert pod["containers"][0]["volumeMounts"][0]["name"] == volume["name"]
    account = found["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == account
    binding = found["RoleBinding"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == found["Role"]["metadata"]["name"]


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_files_for_kubernetes_follow_its_schema(name):
    """By the models in the package kubernetes: types, required fields, and no others."""
    models = pytest.importorskip("kubernetes.client.models", reason="needs the package kubernetes")
    found = objects(name)
    if name == "jobset.yaml":  # its schema is not in the package, but that of its Job
        (replicated,) = found.pop("JobSet")["spec"]["replicatedJobs"]
        found["JobTemplateSpec"] = replicated["template"]
    for kind, described in found.items():
        model = getattr(models, f"V1{kind}").model_validate(described)
        assert model.model_dump(by_alias=True, exclude_unset=True) == described


def test_a_job_set_has_fields_of_its_schema():
    """By hand: from the types of jobset.x-k8s.io/v1alpha2, those that the file uses."""
    job_set = objects("jobset.yaml")["JobSet"]
    assert job_set.keys() == {"apiVersion", "kind", "metadata", "spec"}
    assert job_set["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    spec = job_set["spec"]
    assert spec.keys() == {"failurePolicy", "replicatedJobs"}
    assert spec["failurePolicy"].keys() == {"maxRestarts", "rules"}
    for rule in spec["failurePolicy"]["rules"]:
        assert rule.keys() == {"name", "action", "onJobFailureReasons"}
        assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    for replicated in spec["replicatedJobs"]:
        assert replicated.keys() == {"name", "replicas", "template"}
        assert replicated["template"].keys() == {"spec"}


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


TRAIN = str(CLUSTERS / "train.py")
# Long enough for a signal in its midst, after at least one checkpoint.
ARGUMENTS = [TRAIN, "--epochs=12", "--rows=8000"]


def environment_of_python():
    """With `python` as the interpreter of the tests; without their own settings."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    return {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"} | {"PATH": path}


def losses(output):
    """The loss of each epoch, by its number; the same in all processes that have printed it."""
    found = {}
    for epoch, loss in re.findall(r": epoch (\d+): loss ([\d.]+)", output):
        assert found.setdefault(int(epoch), loss) == loss, output
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses of the same training in one process without a break."""
    result = subprocess.run(
        ["python", *ARGUMENTS],
        cwd=tmp_path_factory.mktemp("alone"),
        env=environment_of_python(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return losses(result.stdout)


@pytest.fixture(scope="module")
def slurm_environment(tmp_path_factory):
    reason = slurm.why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment | environment_of_python()


# Two of them at once, beside other tests, take longer than their limit of two minutes.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "status"), [("SIGKILL", 137), ("SIGTERM", 143)])
def test_a_job_of_slurm_goes_on_from_its_newest_checkpoint(
    tmp_path, slurm_environment, alone, name, status
):
    """SIGKILL to one of two tasks, as a machine out of memory; SIGTERM to both, as preemption."""

    def output(*command):
        result = subprocess.run(
            command, cwd=tmp_path, env=slurm_environment, capture_output=True, text=True, check=True
        )
        return result.stdout.strip()

    def wait_until(condition):
        deadline = time.monotonic() + 120
        while not condition(log.read_text() if log.exists() else ""):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    submit = ("sbatch", "--parsable", "--nodes=1", "--ntasks-per-node=2", "--time=10", str(SLURM))
    job = output(*submit, *ARGUMENTS)
    log = tmp_path / f"train-{job}.log"
    try:
        wait_until(lambda text: "process 1 of 2" in text and ": epoch 2:" in text)
        if name == "SIGKILL":
            pid = re.search(r"process 1 of 2 \(pid (\d+)\)", log.read_text())[1]
            os.kill(int(pid), signal.SIGKILL)
        else:
            output("scancel", "--signal=TERM", job)
        wait_until(lambda _: output("squeue", "-h", "-j", job, "-o", "%r") == "BeginTime")
        assert f"Run 1 ended with exit status {status}. The job goes back" in log.read_text()
        output("scontrol", "update", f"JobId={job}", "StartTime=now")  # it waits for two minutes
        wait_until(lambda text: text.count(": done") == 2)
        first, _, second = log.read_text().rpartition("The job goes back into the queue.")
        assert "of 2 (pid" in second
        assert 0 not in losses(second)  # it did not begin anew
        assert losses(first) | losses(second) == alone
        assert ("process 1 (host " in first) == (name == "SIGKILL")  # failed first
    finally:
        output("scancel", job)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
def test_a_training_under_mpi(tmp_path, alone):
    more = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}
    more["OMPI_MCA_rmaps_base_oversubscribe"] = "1"  # also on one core
    result = subprocess.run(
        [str(CLUSTERS / "mpi.sh"), *ARGUMENTS],
        cwd=tmp_path,
        env=environment_of_python() | more,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(": done") == 2
    assert "process 1 of 2" in result.stdout
    assert losses(result.stdout) == alone


NO_RAY = importlib.util.find_spec("ray") is None


@contextlib.contextmanager
def under_ray(directory, *command):
    """Starts a script that uses Ray; yields a function that returns its output, and the process."""
    log = directory / "log"
    # Ray keeps a token in the home directory. It leaves out lines that several workers print.
    more = {"HOME": str(directory), "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    more["JAX_PLATFORMS"] = "cpu"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=directory,
            env=environment_of_python() | more,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log.read_text, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(NO_RAY, reason="Ray is not installed")
def test_workers_of_ray_go_on_after_one_was_killed(tmp_path, alone):
    command = [str(CLUSTERS / "ray_train.py"), "--checkpoints=checkpoints", *ARGUMENTS[1:]]
    with under_ray(tmp_path, *command) as (output, process):
        deadline = time.monotonic() + 120
        while not ("process 1 of 2" in output() and ": epoch 2:" in output()):
            assert time.monotonic() < deadline, output()
            assert process.poll() is None, output()
            time.sleep(0.1)
        pid = int(re.search(r"process 1 of 2 \(pid (\d+)\)", output())[1])
        os.kill(pid, signal.SIGKILL)
        assert process.wait(150) == 0, output()
    text = output()
    assert losses(text) == alone
    assert re.search(rf"millrace: process 1 \(host .*, pid {pid}\) failed first: it died", text)
    runs = dict.fromkeys(re.findall(r"process [01] of 2 \(pid (\d+)\)", text))
    assert len(runs) == 4  # two in each of two runs
    second = "\n".join(line for line in text.splitlines() if f"(pid {list(runs)[-1]})" in line)
    assert 0 not in losses(second)  # it did not begin anew


@pytest.mark.slow
@pytest.mark.skipif(NO_RAY, reason="Ray is not installed")
def test_workers_that_ray_has_connected(tmp_path):
    script = pathlib.Path(__file__).parent / "connected_ray_workers.py"
    with under_ray(tmp_path, str(script)) as (output, process):
        assert process.wait(170) == 0, output()
    assert {"trained 0 of 2", "trained 1 of 2"} <= set(re.findall(r"trained . of .", output()))
    assert re.search(r"millrace: process 1 \(host .*\) failed first: it died", output())
