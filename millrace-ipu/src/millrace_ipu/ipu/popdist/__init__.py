"""PopDist: the processes ("instances") and the replicas of a run.

    poprun --num-replicas 4 --num-instances 2 python train.py
    millrace poprun --num-replicas 4 --num-instances 2 python train.py

init()                          -> millrace.distributed.initialize()
getNumInstances()               the number of processes
getNumLocalReplicas()           devices of this process / devices of a replica
popdist.tensorflow              sets an IPUConfig

Without other processes there is one instance with one replica.
"""

import functools as _functools
import os as _os
from collections.abc import Callable, Iterable
from typing import Any

import jax as _jax

from millrace import distributed as _distributed
from millrace.errors import OptionError as _OptionError
from millrace.extend import Launched as _Launched
from millrace.extend import backends_are_initialized as _backends_are_initialized
from millrace.extend import process_count as _process_count
from millrace.extend import process_index as _process_index
from millrace.extend import texts_of_all as _texts_of_all

_SECONDS = 24 * 3600.0  # an instance may compute for long before the others continue
_PER_REPLICA = "POPDIST_IPUS_PER_REPLICA"
_set: dict[str, int] = {}  # by set_ipu_config


@_functools.cache
def _connect() -> None:
    """Connects this process with the others of its run, if there are others and it is not yet.

    Raises:
        DeviceError: if a launcher started this process, and JAX has started too early.
    """
    if _jax.distributed.is_initialized():
        return
    if _Launched.exists() or not _backends_are_initialized():
        _distributed.initialize()


def init(*_: object, **__: object) -> None:
    """Connects this process with the others of the run, unless it is connected."""
    _connect()


def finalize() -> None:
    """Has no effect: processes part when they end."""


def isPopdistEnvSet() -> bool:  # noqa: N802  # these are PopDist's names
    """Returns whether this process is one of a run of `millrace poprun` or `millrace launch`."""
    return getNumInstances() > 1 or "POPDIST_NUM_TOTAL_REPLICAS" in _os.environ


def getNumInstances() -> int:  # noqa: N802
    """Returns the number of processes."""
    _connect()
    return _process_count()


def getInstanceIndex() -> int:  # noqa: N802
    """Returns the number of this process, from 0."""
    _connect()
    return _process_index()


def getNumIpusPerReplica() -> int:  # noqa: N802
    """Returns the number of devices of a replica."""
    return _set.get("ipus_per_replica", int(_os.environ.get(_PER_REPLICA, "1")))


def getNumLocalReplicas() -> int:  # noqa: N802
    """Returns the number of replicas of this process."""
    if not isPopdistEnvSet():
        return 1
    return max(_jax.local_device_count() // getNumIpusPerReplica(), 1)


def getNumTotalReplicas() -> int:  # noqa: N802
    """Returns the number of replicas of all processes."""
    return getNumLocalReplicas() * getNumInstances()


def getReplicaIndexOffset() -> int:  # noqa: N802
    """Returns the number of this process's first replica."""
    return getNumLocalReplicas() * getInstanceIndex()


def getDeviceId(ipus_per_replica: int | None = None) -> int:  # noqa: N802
    """Returns the number of this process's first device among those of all."""
    return getInstanceIndex() * _jax.local_device_count() if isPopdistEnvSet() else 0


def checkNumIpusPerReplica(ipus_per_replica: int) -> None:  # noqa: N802
    """Refuses another number of devices of a replica than the run was started with.

    Raises:
        OptionError: for another number.
    """
    started = _os.environ.get(_PER_REPLICA)
    if started is not None and int(started) != ipus_per_replica:
        raise _OptionError(
            f"The run was started with {started} devices for a replica, and the program asks for "
            f"{ipus_per_replica}. Set `millrace poprun --ipus-per-replica {ipus_per_replica}`."
        )


def execute_on_instances(
    instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Returns the result of a function in some processes; None in the others.

    Args:
        instances: the numbers of these processes.
        function: what they call.
        *args: its arguments.
        **kwargs: its keyword arguments.
    """
    return function(*args, **kwargs) if getInstanceIndex() in set(instances) else None


def synchronize(group: object = None) -> None:
    """Waits until all processes have come here."""
    _texts_of_all("popdist.synchronize()", _SECONDS)


def set_ipus_per_replica(number: int) -> None:
    """Sets the number of devices of a replica; `popdist.tensorflow` calls this."""
    _set["ipus_per_replica"] = number


def set_processes(config: Any) -> Any:
    """Returns an `IPUConfig`, after it was told the processes of the run."""
    distribution = config.experimental.multi_replica_distribution
    distribution.process_count, distribution.process_index = _process_count(), _process_index()
    return config


if _Launched.exists():
    _connect()  # before the program makes an array
