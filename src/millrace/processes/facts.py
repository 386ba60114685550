"""Which process of the run this is, out of how many."""

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
    """The number of this process, from 0. Does not start JAX."""
    return compat.process_index()


def process_count() -> int:
    """How many processes the run has; 1 without `millrace.distributed`. Does not start JAX."""
    return compat.process_count()


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One process of the run, in words that help to find it."""

    index: int
    host: str
    pid: int

    @classmethod
    def this(cls, index: int) -> Self:
        """Describes the process that calls."""
        return cls(index, socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"process {self.index} (host {self.host}, pid {self.pid})"


@dataclasses.dataclass(frozen=True, slots=True)
class Launched:
    """What `millrace launch` tells each process, in one variable of its environment."""

    coordinator_address: str
    num_processes: int
    process_id: int
    devices: int | None  # virtual CPU devices of each process
    directory: str  # where a process leaves notes for the launcher
    launcher: int  # its pid

    def to_environment(self) -> dict[str, str]:
        """The variable to start the process with."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def take(cls) -> Self | None:
        """Takes the variable out of the environment; None where nobody launched this process.

        It is taken out because a process that the script starts, a loader of data say, inherits
        the environment and is not this process.
        """
        text = os.environ.pop(_VARIABLE, None)
        return None if text is None else cls(**json.loads(text))

    def end_with_launcher(self) -> None:
        """Makes the kernel kill this process when the launcher dies, which cannot do it then."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self.launcher:  # It died before.
                os._exit(1)

    def note(self, name: str, text: str = "") -> None:
        """Leaves a note for the launcher; the first one of a name stays."""
        try:
            with open(os.path.join(self.directory, name), "x") as file:
                file.write(text)
        except OSError:
            pass  # It is there, or the launcher has gone; its summary has less to say then.
