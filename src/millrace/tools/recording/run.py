"""The run that this process takes part in: its directory, its page, and its end.

Strategy(report_dir="runs/7")     that directory, also for several strategies and several starts
MILLRACE_REPORT_DIR=runs          runs/train-20260102-030405-77, one for all strategies of a process
                                  and all processes that `jax.distributed` has connected
callbacks.Report("runs/7")        that directory, for the records of one call       calls.py
"""

import atexit
import logging
import os
import pathlib
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import jax

from millrace._compat.jax_targets import belongs_here
from millrace.base.devices import device_name
from millrace.base.records.compilation import CompileRecord
from millrace.base.records.directory import RunDirectory
from millrace.base.records.loops import ProcessRecord
from millrace.base.records.run import has_records, last_loop, load
from millrace.compilation.executables.compile import number_of_cores
from millrace.compilation.explain.key import versions
from millrace.errors import OptionError
from millrace.run.fit.totals import begin_loops_after
from millrace.run.processes.agreement import process_count, process_index, text_of_first
from millrace.run.recording.loop_recorder import LoopWriter
from millrace.tools.recording.in_use import take
from millrace.tools.recording.page import RunPage

logger = logging.getLogger("millrace")

VARIABLE = "MILLRACE_REPORT_DIR"


class RecordedRun:
    """A run in one directory, as this process writes it."""

    def __init__(self, path: pathlib.Path):
        """Makes the directory, or continues in it.

        Raises:
            OptionError: if it cannot be made, or another process writes to it.
        """
        self.directory = RunDirectory(path, process_index())
        _check_alone(path)
        self.pid = os.getpid()
        self.page = RunPage(self.directory) if process_index() == 0 else None
        self.open_loops: list[LoopWriter] = []  # closed at the end of the process
        self.compilations: set[CompileRecord] = set()  # that calls of models have written
        self._process: ProcessRecord | None = None
        begin_loops_after(last_loop(path, process_index()))

    def take_part(self, devices: Sequence[jax.Device]) -> None:
        """Writes who takes part: this process, with some devices."""
        own = list(filter(belongs_here, devices))
        names = tuple(map(device_name, own or devices))
        before = self._process
        if before is None:
            self._process = ProcessRecord(
                process=process_index(),
                processes=process_count(),
                script=_script(),
                pid=os.getpid(),
                host=socket.gethostname(),
                cores=number_of_cores(),
                began=time.time(),
                versions=versions(),
                platform=devices[0].platform,
                devices=names,
            )
        else:
            others = tuple(name for name in names if name not in before.devices)
            self._process = replace(before, devices=(*before.devices, *others))
        if self._process != before:
            self.directory.add(self._process)

    def loop_has_ended(self, verbose: object) -> None:
        """Writes the page, unless the last one is new.

        Args:
            verbose: of the loop; where it is wanted, the process says at its end where the page is.
        """
        if self.page is not None:
            self.page.is_wanted_on_terminal |= bool(verbose)
            self.page.loop_has_ended()

    def begin_again(self) -> None:
        """Continues in the directory, which may have been removed since.

        Raises:
            OptionError: if it cannot be made, or another process writes to it.
        """
        if not self.directory.path.is_dir():
            self._process = None  # is written once more
        self.directory.begin_again()
        _check_alone(self.directory.path)

    def end(self) -> None:
        """Writes what is left, at the end of the process."""
        if os.getpid() != self.pid:  # a process that was forked has its own end
            return
        for loop in self.open_loops:
            loop.close()
        if self._process is not None and self.directory.path.is_dir():
            self.directory.add(replace(self._process, ended=time.time()))
        if self.page is not None:
            self.page.process_ends()


def _check_alone(path: pathlib.Path) -> None:
    """Refuses a directory to which another process writes: their records would get mixed.

    Raises:
        OptionError: if there is one.
    """
    if take(path, shared=process_count() > 1):
        return
    writers = load(path).processes if has_records(path) else ()
    who = f" (process {writers[-1].pid} on {writers[-1].host})" if writers else ""
    raise OptionError(
        f"report_dir={str(path)!r} is in use by another process{who} that is still running, and "
        "the records of two runs would get mixed. Set a directory for each process, or set "
        "MILLRACE_REPORT_DIR, which makes one for each. Processes of one run share a directory "
        "once jax.distributed has connected them."
    )


def _script() -> str:
    """Returns the path of the program; empty in a notebook or for `python -c`."""
    path = sys.argv[0] if sys.argv else ""
    is_notebook = "ipykernel" in sys.modules and "ipykernel" in path
    return "" if path == "-c" or is_notebook else path


def open_run(directory: str | os.PathLike[str]) -> RecordedRun:
    """Returns the run in a directory, which is made if it is missing.

    Raises:
        OptionError: if it cannot be made.
    """
    path = pathlib.Path(directory).expanduser().absolute()
    key = os.getpid(), process_index(), path
    with _lock:
        run = _runs.get(key)
        if run is None:
            if not _runs:
                atexit.register(_end_all)
            run = _runs[key] = RecordedRun(path)
        else:
            run.begin_again()
        return run


def run_of_environment() -> RecordedRun | None:
    """Returns the run in a directory of its own, below that of the variable; None without it.

    Raises:
        OptionError: if the directory cannot be made.
    """
    parent = os.environ.get(VARIABLE, "").strip()
    if not parent:
        return None
    key = os.getpid(), process_index(), parent
    with _lock:
        path = _paths.get(key)
        if path is None:
            stem = _directory_name(_script())
            own = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
            name = text_of_first(f"{VARIABLE}={parent}", own)
            # Absolute from now on: the program may change to another directory.
            path = _paths[key] = pathlib.Path(parent).expanduser().absolute() / name
    try:
        return open_run(path)
    except OptionError as error:
        raise OptionError(
            f"{VARIABLE}={parent!r} is no directory that can be written to: {error.__cause__}. Set "
            "it to one, or to nothing."
        ) from error


def _directory_name(script: str) -> str:
    """Returns the name of a script, as part of a directory's name."""
    path = pathlib.Path(script)
    stem = path.parent.name if path.stem == "__main__" else path.stem
    return "".join(c if c.isalnum() or c in "._" else "_" for c in stem) or "python"


def _end_all() -> None:
    for run in list(_runs.values()):
        run.end()


_lock = threading.RLock()
_runs: dict[tuple[int, int, pathlib.Path], RecordedRun] = {}
_paths: dict[tuple[int, int, str], pathlib.Path] = {}  # of the runs that the environment names
