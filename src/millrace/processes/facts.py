"""Number, host and launcher of this process."""

import ctypes
import dataclasses
import json
import os
import signal
import socket
import sys
from typing import Self

from millrace._compat import jax_processes as compat

_VARIABLE = "MILLRACE_LAUNCH"
_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def process_index() -> int:
    """Returns the number of this process, from 0, without starting JAX."""
    return compat.process_index()


def process_count() -> int:
    """Returns the number of processes of the run, without starting JAX; 1 if it is alone."""
    return compat.process_count()


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One process of the run: its number, and where to find it."""

    index: int
    host: str
    pid: int

    @classmethod
    def this(cls, index: int) -> Self:
        """Returns the description of the calling process."""
        return cls(index, socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"process {self.index} (host {self.host}, pid {self.pid})"


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """Facts from `millrace launch` for one process, in a variable of its environment."""

    coordinator_address: str
    num_processes: int
    process_id: int
    devices: int | None  # virtual CPU devices of each process
    directory: str  # where a process leaves notes for the launcher
    launcher: int  # its pid

    def to_environment(self) -> dict[str, str]:
        """Returns the variable to start the process with."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def take(cls) -> Self | None:
        """Reads the variable and removes it; returns None if `millrace launch` did not set it.

        It is removed because processes that the script starts, such as data loaders, inherit the
        environment and are not processes of the run.
        """
        text = os.environ.pop(_VARIABLE, None)
        return None if text is None else cls(**json.loads(text))

    def end_with_launcher(self) -> None:
        """Makes the kernel kill this process if the launcher dies, on Linux."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self.launcher:  # it died before
                os._exit(1)

    def note(self, name: str, text: str = "") -> None:
        """Leaves a note for the launcher, unless there is one of this name already."""
        try:
            with open(os.path.join(self.directory, name), "x") as file:
                file.write(text)
        except OSError:
            pass  # it exists, or the launcher has gone; its summary then says less
