"""A run of several processes on this machine: what `millrace launch` does.

Each process has its own share of the cores that this one may use: only affinity keeps JAX's
threads apart. Process 0 writes to the terminal, the others each to a file.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from millrace.processes.facts import Launched

_POLL_SECONDS = 0.05
_SHOWN_LINES = 20  # of the output of a process that failed first


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """What to start, and how."""

    command: tuple[str, ...]  # the script and its arguments
    processes: int
    devices: int | None = None  # virtual CPU devices of each process
    timeout: float = 30.0  # seconds that the others have to end after one has failed
    pin: bool = True


def share_cores(cores: Sequence[int], processes: int) -> list[set[int]]:
    """Deals out the cores, or has processes take turns where there are too few."""
    if processes > len(cores):
        return [{cores[index % len(cores)]} for index in range(processes)]
    bounds = [index * len(cores) // processes for index in range(processes + 1)]
    return [set(cores[bounds[i] : bounds[i + 1]]) for i in range(processes)]


def launch(plan: Launch, say: Callable[[str], None]) -> int:
    """Runs the processes until all have ended, and leaves none behind.

    Args:
        plan: what to start.
        say: prints a line for the user.

    Returns:
        0, or the exit status of the process that failed first; 128 and the number of a signal.
    """
    directory = pathlib.Path(tempfile.mkdtemp(prefix="millrace-launch-"))
    processes: list[subprocess.Popen[bytes]] = []
    # As an error of this process, SIGTERM takes the way of Ctrl-C.
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        _start(plan, directory, processes, say)
        first = _wait(processes, plan.timeout)
    except (KeyboardInterrupt, _TerminatedError) as error:
        say(f"millrace launch: ending {len(processes)} processes")
        _signal(processes, signal.SIGINT)
        _wait_for_all(processes, plan.timeout)
        return 128 + (signal.SIGTERM if isinstance(error, _TerminatedError) else signal.SIGINT)
    finally:
        _signal(processes, signal.SIGKILL)
        for process in processes:
            process.wait()
        signal.signal(signal.SIGTERM, previous)
    if plan.processes > 1 and not any(directory.glob("initialized-*")):
        say(
            f"millrace launch: no process called millrace.distributed.initialize(), so the script "
            f"ran {plan.processes} times, each alone. Add that line below `import millrace`."
        )
    return 0 if first is None else _report(processes, first, directory, say)


class _TerminatedError(Exception):
    """This process was asked to end."""


def _terminated(*_: object) -> None:
    raise _TerminatedError


def _start(
    plan: Launch,
    directory: pathlib.Path,
    processes: list[subprocess.Popen[bytes]],
    say: Callable[[str], None],
) -> None:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    shares = share_cores(sorted(allowed), plan.processes) if plan.pin and allowed else []
    if shares and plan.processes > len(allowed):
        say(f"millrace launch: {plan.processes} processes share {len(allowed)} cores")
    address = f"127.0.0.1:{_free_port()}"
    # Where this process ignores SIGINT, as a background job of a script does, its children would
    # inherit that, and not end when they are told to.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for index in range(plan.processes):
            told = Launched(
                address, plan.processes, index, plan.devices, str(directory), os.getpid()
            )
            if shares:
                # A child inherits the affinity, which JAX reads when it is imported.
                os.sched_setaffinity(0, shares[index])
            processes.append(_process(plan.command, told, _log(directory, index)))
            if index:
                say(f"millrace launch: process {index} writes to {_log(directory, index)}")
    finally:
        signal.signal(signal.SIGINT, previous)
        if shares:
            os.sched_setaffinity(0, allowed)


def _process(
    command: tuple[str, ...], told: Launched, log: pathlib.Path
) -> subprocess.Popen[bytes]:
    environment = os.environ | told.to_environment() | {"PYTHONUNBUFFERED": "1"}
    # A session of its own is a process group that can be ended with all that it has started.
    if told.process_id == 0:
        return subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _log(directory: pathlib.Path, index: int) -> pathlib.Path:
    return directory / f"process-{index}.log"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> int | None:
    """Waits for all; returns the one that failed first and then for `timeout` seconds at most."""
    while True:
        codes = [_code(process) for process in processes]
        failed = [index for index, code in enumerate(codes) if code]
        if failed:
            _wait_for_all(processes, timeout)
            return failed[0]
        if None not in codes:
            return None
        time.sleep(_POLL_SECONDS)


def _wait_for_all(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while any(_code(process) is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """How a process ended; None while it runs. What it has started does not outlive it."""
    if process.returncode is None and process.poll() is not None:
        _signal_group(process, signal.SIGKILL)  # at once: its number may soon be another's
    return process.returncode


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        if _code(process) is None:
            _signal_group(process, number)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The whole group may have ended, which macOS says in the second way.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _report(
    processes: Sequence[subprocess.Popen[bytes]],
    first: int,
    directory: pathlib.Path,
    say: Callable[[str], None],
) -> int:
    note, text = directory / "failed", ""
    if note.exists():
        # They know better than a look every 50 ms at who is still there.
        told, _, text = note.read_text().partition("\n")
        first = int(told)
    code = processes[first].returncode
    if first:
        lines = _log(directory, first).read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        say(f"millrace launch: the last lines of {_log(directory, first)}:")
        for line in lines:
            say(f"    {line}")
    ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    say(f"millrace launch: process {first} failed first ({ended}){': ' * bool(text)}{text}")
    return 128 - code if code < 0 else code or 1
