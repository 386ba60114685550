"""The command `millrace launch`: several processes of a script on this machine.

The processes share out the cores of this one, as only affinity keeps JAX's threads apart. Process
0 writes to the terminal, each other process to a file.
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

from millrace.processes.agreement import Launched

_POLL_SECONDS = 0.05
_SHOWN_LINES = 20  # of the output of the process that failed first


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The script to start, and the number and kind of its processes."""

    command: tuple[str, ...]  # the script and its arguments
    processes: int
    devices: int | None = None  # virtual CPU devices in each process
    timeout: float = 30.0  # seconds that the other processes have to end after one has failed
    pin: bool = True  # whether each process has its own share of the cores
    environment: tuple[tuple[str, str], ...] = ()  # more variables of each process


def share_cores(cores: Sequence[int], processes: int) -> list[set[int]]:
    """Returns the cores of each process, which share cores if there are too few of them."""
    if processes > len(cores):
        return [{cores[index % len(cores)]} for index in range(processes)]
    bounds = [index * len(cores) // processes for index in range(processes + 1)]
    return [set(cores[bounds[i] : bounds[i + 1]]) for i in range(processes)]


def launch(options: LaunchOptions, say: Callable[[str], None]) -> int:
    """Runs the processes until all of them have ended, and leaves none behind.

    Args:
        options: the script and its processes.
        say: prints a line for the user.

    Returns:
        0, or the exit status of the process that failed first: 128 plus the number of the signal
        if a signal ended it.
    """
    directory = pathlib.Path(tempfile.mkdtemp(prefix="millrace-launch-"))
    processes: list[subprocess.Popen[bytes]] = []
    # SIGTERM is raised as an error, so that it is handled like Ctrl-C.
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        _start(options, directory, processes, say)
        first = _wait(processes, options.timeout)
    except (KeyboardInterrupt, _TerminatedError) as error:
        say(f"millrace launch: ending {len(processes)} processes")
        _signal(processes, signal.SIGINT)
        _wait_for_all(processes, options.timeout)
        return 128 + (signal.SIGTERM if isinstance(error, _TerminatedError) else signal.SIGINT)
    finally:
        _signal(processes, signal.SIGKILL)
        for process in processes:
            process.wait()
        signal.signal(signal.SIGTERM, previous)
    if options.processes > 1 and not any(directory.glob("initialized-*")):
        say(
            f"millrace launch: no process called millrace.distributed.initialize(), so the script "
            f"ran {options.processes} times, each alone. Add that line below `import millrace`."
        )
    return 0 if first is None else _report(processes, first, directory, say)


class _TerminatedError(Exception):
    """SIGTERM has arrived."""


def _terminated(*_: object) -> None:
    raise _TerminatedError


def _start(
    options: LaunchOptions,
    directory: pathlib.Path,
    processes: list[subprocess.Popen[bytes]],
    say: Callable[[str], None],
) -> None:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    shares = share_cores(sorted(allowed), options.processes) if options.pin and allowed else []
    if shares and options.processes > len(allowed):
        say(f"millrace launch: {options.processes} processes share {len(allowed)} cores")
    address = f"127.0.0.1:{_free_port()}"
    # A background job of a script ignores SIGINT. Its children would inherit that, and not end
    # when they receive the signal.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for index in range(options.processes):
            launched = Launched(
                address, options.processes, index, options.devices, str(directory), os.getpid()
            )
            if shares:
                # A child inherits the affinity, which JAX reads when it is imported.
                os.sched_setaffinity(0, shares[index])
            processes.append(_process(options, launched, _log(directory, index)))
            if index:
                say(f"millrace launch: process {index} writes to {_log(directory, index)}")
    finally:
        signal.signal(signal.SIGINT, previous)
        if shares:
            os.sched_setaffinity(0, allowed)


def _process(
    options: LaunchOptions, launched: Launched, log: pathlib.Path
) -> subprocess.Popen[bytes]:
    command, more = options.command, {"PYTHONUNBUFFERED": "1", **dict(options.environment)}
    environment = os.environ | launched.to_environment() | more
    # A new session is a new process group, which can be ended with all processes that it starts.
    if launched.process_id == 0:
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
    """Waits until all have ended, or until `timeout` seconds after the first failure.

    Returns the index of the process that failed first; None if none failed.
    """
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
    """Returns the exit status; None while it runs. Kills the processes that it leaves behind."""
    if process.returncode is None and process.poll() is not None:
        _signal_group(process, signal.SIGKILL)  # at once: its number may soon be reused
    return process.returncode


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        if _code(process) is None:
            _signal_group(process, number)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The whole group may have ended, for which macOS raises the second error.
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
        # The processes know this better than their parent, which looks every 50 ms.
        number, _, text = note.read_text().partition("\n")
        first = int(number)
    code = processes[first].returncode
    if first:
        lines = _log(directory, first).read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        say(f"millrace launch: the last lines of {_log(directory, first)}:")
        for line in lines:
            say(f"    {line}")
    ended = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    say(f"millrace launch: process {first} failed first ({ended}){': ' * bool(text)}{text}")
    return 128 - code if code < 0 else code or 1
