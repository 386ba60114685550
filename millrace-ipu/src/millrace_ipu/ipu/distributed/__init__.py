"""Processes of a run, as Horovod has them; `ipu.horovod` is another name of this module.

init()                     -> millrace.distributed.initialize()
size(), rank()             the number of processes, and of this one
allreduce, broadcast, ...  raise: JAX exchanges arrays of the host
popdist_strategy           the strategy of such a run
"""

import importlib as _importlib
from typing import Any

from millrace.extend import process_count as _process_count
from millrace.extend import process_index as _process_index
from millrace_ipu.ipu.popdist import init as init
from millrace_ipu.ipu.replacements import other_name as _other_name

_STRATEGIES = ("ipu_horovod_strategy", "ipu_multi_replica_strategy", "popdist_strategy")


def shutdown() -> None:
    """Has no effect: processes part when they end."""


# `millrace poprun` starts all processes on this machine.
size = local_size = _process_count
rank = local_rank = _process_index


def is_initialized() -> bool:
    """Returns whether this process is connected with others."""
    return _process_count() > 1


def __getattr__(name: str) -> Any:
    if name not in _STRATEGIES:
        return _other_name(__name__, name)
    return _importlib.import_module(f"{__name__}.popdist_strategy")
