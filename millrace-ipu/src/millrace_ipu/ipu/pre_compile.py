"""Processes that compile programs without running them: `device_connection.type = PRE_COMPILE`.

    IPUConfig.device_connection.type = DeviceConnectionType.PRE_COMPILE   `millrace precompile`
    the files of --executable_cache_path                                  MILLRACE_CACHE_DIR

Results are zeros, so Python code that branches on them may compile other programs than a real run.
The files serve the same program with the same versions and kind of device, on any machine.
"""

import contextlib
import pathlib
import sys

from millrace.errors import PlanError
from millrace.extend import (
    EntryLabels,
    ProgramListener,
    compiling_only,
    register_listener,
    unregister_listener,
    use_cache,
)
from millrace_ipu.ipu.environment import cache_directory

_until = contextlib.ExitStack()


def begin_pre_compile() -> None:
    """Makes programs compile from now on without running.

    Raises:
        PlanError: without a directory for compiled programs.
    """
    use_cache()
    if cache_directory() is None:
        raise PlanError(
            "device_connection.type=PRE_COMPILE fails a precondition: without a compile cache its "
            'programs would be lost. Set TF_POPLAR_FLAGS="--executable_cache_path=DIRECTORY" '
            "or MILLRACE_CACHE_DIR=DIRECTORY."
        )
    end_pre_compile()
    _until.enter_context(compiling_only(functions=True))
    register_listener(_listener)
    _until.callback(unregister_listener, _listener)


def end_pre_compile() -> None:
    """Makes programs run again."""
    _until.close()


class _Listener(ProgramListener):
    def saved(self, labels: EntryLabels, path: pathlib.Path) -> None:
        if labels.program:  # Keras's own programs have no label
            print(f"PRE_COMPILE: {labels.program} is saved in {path}", file=sys.stderr)


_listener = _Listener()
