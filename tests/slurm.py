"""A cluster of Slurm on this machine alone: its daemons, with their files in one directory."""

import contextlib
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import time

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
_SECONDS = 30
_CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


def why_not():
    """Why no cluster can be started here; None if it can."""
    missing = [name for name in _PROGRAMS if not find(name)]
    if missing:
        return f"Slurm is not installed: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "slurmd runs as root only"
    try:
        socket.gethostbyname(_host())
    except OSError:
        return f"the name of this machine, {_host()}, has no address"
    return None


def find(name):
    """The path of a program; daemons are not on every PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _host():
    return socket.gethostname().partition(".")[0]


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@contextlib.contextmanager
def cluster(directory: pathlib.Path):
    """Starts the daemons, and ends them; yields the environment for Slurm's commands."""
    configuration = directory / "slurm.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            host=_host(),
            user="root",
            directory=directory,
            controller_port=_free_port(),
            node_port=_free_port(),
        )
    )
    (directory / "state").mkdir()
    (directory / "spool").mkdir()
    key = directory / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    files = {name: f"{directory}/munge.{name}" for name in ("socket", "pid", "log", "seed")}
    options = [
        f"--{option}={path}"
        for option, path in zip(
            ("socket", "pid-file", "log-file", "seed-file"), files.values(), strict=True
        )
    ]
    environment = os.environ | {"SLURM_CONF": str(configuration)}
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *options],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", _host()],
    ]
    daemons = []
    try:
        for command in commands:
            with (directory / f"{command[0]}.out").open("wb") as out:
                daemons.append(
                    subprocess.Popen(
                        [find(command[0]), *command[1:]],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=subprocess.STDOUT,
                    )
                )
            if command[0] == "munged":
                _wait(lambda: pathlib.Path(files["socket"]).exists(), directory)
        _wait(lambda: _is_idle(environment), directory)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()


def _is_idle(environment):
    command = ["sinfo", "-h", "-o", "%t"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return found.stdout.strip() == "idle"


def _wait(condition, directory):
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            said = "".join(path.read_text()[-2000:] for path in directory.glob("*.out"))
            raise AssertionError(f"Slurm did not start in {_SECONDS} seconds:\n{said}")
        time.sleep(0.1)
