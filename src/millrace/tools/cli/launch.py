"""The command `millrace launch`: several processes of a script on this machine.

The processes share out the cores of this one, as only affinity keeps JAX's threads apart. Process
0 writes to the terminal, each other process to a file. After a failure all of them can start again.
"""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from millrace.base.interrupts import TERMINATED
from millrace.run.processes.agreement import Launched
from millrace.run.processes.listening import free_port

_POLL_SECONDS = 0.05
_SHOWN_LINES = 20  # of the output of the process that failed first
# A second Ctrl-C before that is the first one again: a program above the launcher, such as make,
# may forward the signal that the terminal has sent to both.
_PATIENCE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The script to start, and the number and kind of its processes."""

    command: tuple[str, ...]  # the script and its arguments
    processes: int
    devices: int | None = None  # virtual CPU devices in each process
    timeout: float = 30.0  # seconds to end, after a failure elsewhere, SIGTERM or Ctrl-C
    pin: bool = True  # whether each process has its own share of the cores
    environment: tuple[tuple[str, str], ...] = ()  # more variables of each process
    restarts: int = 0  # times that all processes are started again after one has failed


@dataclasses.dataclass(frozen=True, slots=True)
class _Failure:
    """The end of a run by the process that failed first."""

    process: int
    code: int  # as in `subprocess`: minus the number of the signal that ended it
    text: str  # its error; empty if it has told none

    @property
    def status(self) -> int:
        return 128 - self.code if self.code < 0 else self.code or 1

    def __str__(self) -> str:
        ended = f"exit status {self.code}"
        if self.code < 0:
            ended = signal.Signals(-self.code).name
        elif self.code == TERMINATED:
            ended += ", as after SIGTERM"
        return f"process {self.process} failed first ({ended}){': ' * bool(self.text)}{self.text}"


class _Stop:
    """SIGTERM and Ctrl-C, which the loop of the launcher looks for."""

    number: signal.Signals | None = None  # of the first signal
    at_once = False  # Ctrl-C came again
    _since = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._since = signal.Signals(number), now
        elif number == signal.SIGINT and now - self._since > _PATIENCE_SECONDS:
            self.at_once = True

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Receives the signals. Ctrl-C stays ignored where the launcher was told to ignore it."""
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            numbers.remove(signal.SIGINT)
        previous = {number: signal.signal(number, self.handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


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
        0, or the exit status of the process that failed first in the last run: 128 plus the number
        of the signal if a signal ended it. After SIGTERM or Ctrl-C, 128 plus its number.
    """
    directory = pathlib.Path(tempfile.mkdtemp(prefix="millrace-launch-"))
    stop, failure = _Stop(), None
    shares = _shares(options, say)
    for index in range(1, options.processes):
        say(f"millrace launch: process {index} writes to {_log(directory, index)}")
    with stop.listening():
        for restart in range(options.restarts + 1):
            if restart:
                say(f"millrace launch: restart {restart} of {options.restarts}: {failure}")
            failure = _run(options, directory, shares, stop, say)
            if failure is None or stop.number is not None:
                break
    if stop.number is not None:
        return 128 + stop.number
    if options.processes > 1 and not any(directory.glob("initialized-*")):
        say(
            f"millrace launch: no process called millrace.distributed.initialize(), so the script "
            f"ran {options.processes} times, each alone. Add that line below `import millrace`."
        )
    if failure is None:
        return 0
    if failure.process:
        log = _log(directory, failure.process)
        say(f"millrace launch: the last lines of {log}:")
        for line in log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]:
            say(f"    {line}")
    say(f"millrace launch: {failure}")
    return failure.status


def _shares(options: LaunchOptions, say: Callable[[str], None]) -> list[set[int]]:
    """Returns the cores of each process; none if they are not pinned."""
    if not options.pin or not hasattr(os, "sched_getaffinity"):
        return []
    cores = sorted(os.sched_getaffinity(0))
    if options.processes > len(cores):
        say(f"millrace launch: {options.processes} processes share {len(cores)} cores")
    return share_cores(cores, options.processes)


def _run(
    options: LaunchOptions,
    directory: pathlib.Path,
    shares: Sequence[set[int]],
    stop: _Stop,
    say: Callable[[str], None],
) -> _Failure | None:
    """Starts the processes once, and returns their failure when all have ended."""
    for note in (directory / "failed", *directory.glob("initialized-*")):
        note.unlink(missing_ok=True)  # of the run before
    processes: list[subprocess.Popen[bytes]] = []
    try:
        _start(options, directory, shares, processes)
        first = _wait(processes, options.timeout, stop, say)
    finally:
        _kill(processes)
        for process in processes:
            process.wait()
    return None if first is None else _failure(processes, first, directory)


def _start(
    options: LaunchOptions,
    directory: pathlib.Path,
    shares: Sequence[set[int]],
    processes: list[subprocess.Popen[bytes]],
) -> None:
    allowed = os.sched_getaffinity(0) if shares else set()
    address, run = f"127.0.0.1:{free_port('127.0.0.1')}", uuid.uuid4().hex
    # A background job of a script ignores SIGINT. Its children would inherit that, and not end
    # when they receive the signal. Handlers, on the other hand, are not inherited.
    previous = signal.getsignal(signal.SIGINT)
    if previous is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _ignored)
    try:
        for index in range(options.processes):
            launched = Launched(
                coordinator_address=address,
                num_processes=options.processes,
                process_id=index,
                devices=options.devices,
                directory=str(directory),
                launcher=os.getpid(),
                run=run,
            )
            if shares:
                # A child inherits the affinity, which JAX reads when it is imported.
                os.sched_setaffinity(0, shares[index])
            processes.append(_process(options, launched, _log(directory, index)))
    finally:
        signal.signal(signal.SIGINT, previous)
        if shares:
            os.sched_setaffinity(0, allowed)


def _ignored(number: int, frame: FrameType | None) -> None:
    """Handles a signal by doing nothing."""


def _process(
    options: LaunchOptions, launched: Launched, log: pathlib.Path
) -> subprocess.Popen[bytes]:
    command, more = options.command, {"PYTHONUNBUFFERED": "1", **dict(options.environment)}
    environment = os.environ | launched.to_environment() | more
    # A new session is a new process group, which can be ended with all processes that it starts.
    # Ctrl-C in a terminal does not reach it: each process gets the signal once, from the launcher.
    is_first = launched.process_id == 0
    # A restart continues the file.
    with contextlib.nullcontext() if is_first else log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=None if is_first else subprocess.STDOUT,
            start_new_session=True,
        )


def _log(directory: pathlib.Path, index: int) -> pathlib.Path:
    return directory / f"process-{index}.log"


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    timeout: float,
    stop: _Stop,
    say: Callable[[str], None],
) -> int | None:
    """Waits until all have ended, or `timeout` seconds after the first failure or signal.

    Returns the index of the process that failed first; None if none failed.
    """
    first, deadline, is_forwarded = None, float("inf"), False
    while True:
        codes = [_code(process) for process in processes]
        running = [index for index, code in enumerate(codes) if code is None]
        now = time.monotonic()
        if first is None and any(codes):
            first = next(index for index, code in enumerate(codes) if code)
            deadline = now + timeout
        if stop.number is not None and not is_forwarded:
            if running:
                say(f"millrace launch: ending {_names(running)} ({stop.number.name})")
            for index in running:
                _send(processes[index], stop.number)
            deadline, is_forwarded = now + timeout, True
        if not running:
            return first
        if stop.at_once or now > deadline:
            reason = "at once" if stop.at_once else f"after {timeout:g} seconds"
            say(f"millrace launch: killed {reason}: {_names(running)}")
            return first
        time.sleep(_POLL_SECONDS)


def _names(indices: Sequence[int]) -> str:
    return f"process{'es' * (len(indices) > 1)} {', '.join(map(str, indices))}"


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Not to its group: the processes that load its data must live until it has saved.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Returns the exit status; None while it runs. Kills the processes that it leaves behind."""
    if process.returncode is None and process.poll() is not None:
        _kill_group(process)  # at once: its number may soon be reused
    return process.returncode


def _kill(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if _code(process) is None:
            _kill_group(process)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # The whole group may have ended, for which macOS raises the second error.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure(
    processes: Sequence[subprocess.Popen[bytes]], first: int, directory: pathlib.Path
) -> _Failure:
    note, text = directory / "failed", ""
    if note.exists():
        # The processes know this better than their parent, which looks every 50 ms.
        number, _, text = note.read_text().partition("\n")
        first = int(number or first)  # empty if its process was killed before it wrote
    return _Failure(first, processes[first].returncode, text)
