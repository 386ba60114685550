"""A process that compiles and runs nothing: `device_connection.type = PRE_COMPILE`.

    IPUConfig.device_connection.type = DeviceConnectionType.PRE_COMPILE   `millrace precompile`
    the files of --executable_cache_path                                  MILLRACE_CACHE_DIR

Results are zeros, so a program that branches by them may compile others than in a real run. The
files serve the same program, versions and kind of device, on any machine they are copied to.
"""

import contextlib
import pathlib
import sys

from millrace.cache.lookup import saved
from millrace.cache.use import use_cache
from millrace.errors import PlanError
from millrace.ipu.environment import cache_directory
from millrace.precompile.compile_only import compiling_only
from millrace.records.run import EntryLabels

_until = contextlib.ExitStack()


def begin_pre_compile() -> None:
    """Lets programs be compiled, from now on, and none run.

    Raises:
        PlanError: if there is no directory for what is compiled.
    """
    use_cache()
    if cache_directory() is None:
        raise PlanError(
            "device_connection.type=PRE_COMPILE fails a precondition: what it compiles would be "
            'lost, for there is no cache. Set TF_POPLAR_FLAGS="--executable_cache_path=DIRECTORY" '
            "or MILLRACE_CACHE_DIR=DIRECTORY."
        )
    end_pre_compile()
    _until.enter_context(compiling_only(functions=True))
    saved.append(_say)
    _until.callback(saved.remove, _say)


def end_pre_compile() -> None:
    """Lets programs run again."""
    _until.close()


def _say(labels: EntryLabels, path: pathlib.Path) -> None:
    if labels.program:  # not what Keras compiles for itself
        print(f"PRE_COMPILE: {labels.program} is saved in {path}", file=sys.stderr)
