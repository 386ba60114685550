"""Runs on several processes or machines: `millrace.distributed.initialize()`.

A thin call of `jax.distributed.initialize`, after the processes have met
(`processes/bootstrap.py`), with one seed for all and a common end (`processes/failure.py`).
"""

import contextlib
import logging
import multiprocessing
import os
import random
from collections.abc import Sequence
from typing import Any

import jax
import keras

from millrace._compat.jax_processes import backends_are_initialized, recognise_cluster
from millrace.arguments import checked
from millrace.errors import DeviceError, OptionError, ProcessError
from millrace.options import whole_number
from millrace.processes.bootstrap import Rendezvous, meet
from millrace.processes.facts import Launched, process_count, process_index
from millrace.processes.failure import end_together

_LOGGER = logging.getLogger("millrace")
# A process that is done waits for the others, which may save or evaluate for long. Those that die
# meanwhile are noticed by other means.
_THREADS_PER_DEVICE = 4
_SHUTDOWN_SECONDS = 24 * 3600


@checked
def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    *,
    initialization_timeout: int = 300,
    heartbeat_timeout: int = 30,
) -> None:
    """Connects this process with the others of its run. Call it before anything uses JAX.

    Without arguments it asks `millrace launch`, and then JAX, which recognises Slurm, Open MPI,
    Kubernetes and TPU pods. Where none of them started this process it does nothing, so that the
    same script runs alone.

    All processes get the seed of process 0 for `random`, NumPy and Keras, because each of them
    builds the same weights; call `keras.utils.set_random_seed` afterwards for one of your own.

    Args:
        coordinator_address: host and port of process 0, such as "node1:1234". The port must be
            free there, and reachable from all others.
        num_processes: how many processes the run has.
        process_id: the number of this one, from 0.
        local_device_ids: which accelerators of this machine it uses. None: all, or the one that
            the cluster gives it.
        initialization_timeout: seconds to wait for all processes to come.
        heartbeat_timeout: seconds after which a machine that does not answer is given up. A
            process that dies is noticed at once.

    Raises:
        DeviceError: if JAX has started already.
        OptionError: if only some of the first three are given and nothing says the others.
        ProcessError: if it is called twice, the port is in use, or not all processes come.
    """
    if multiprocessing.parent_process() is not None:
        _LOGGER.info("distributed.initialize() does nothing in a worker of multiprocessing.")
        return
    _check_seconds("initialization_timeout", initialization_timeout)
    _check_seconds("heartbeat_timeout", heartbeat_timeout)
    if jax.distributed.is_initialized():
        raise ProcessError(
            f"Process {process_index()} of {process_count()} is connected already. Call "
            "millrace.distributed.initialize() or jax.distributed.initialize() once, not both."
        )
    if backends_are_initialized():
        raise DeviceError(
            "JAX has already started, alone, and cannot be connected with other processes any "
            "more. Move the line\n    millrace.distributed.initialize()\n"
            "above everything that builds a model or an array."
        )
    launched = Launched.take()
    if launched is not None:
        launched.end_with_launcher()
        launched.note(f"initialized-{launched.process_id}")
        coordinator_address = launched.coordinator_address
        num_processes, process_id = launched.num_processes, launched.process_id
        if launched.devices is not None:
            _set("jax_num_cpu_devices", launched.devices)
    else:
        coordinator_address, num_processes, process_id, local_device_ids = recognise_cluster(
            coordinator_address, num_processes, process_id, local_device_ids, initialization_timeout
        )
    place = _place(coordinator_address, num_processes, process_id)
    if place is None:
        _LOGGER.info("No cluster and no launcher started this process: it runs alone.")
        return
    # Drawn by the system, so that a seed that the script has set for itself is not used up.
    seed = random.SystemRandom().randrange(2**31)
    line, seed = meet(place, seed, initialization_timeout, heartbeat_timeout)
    note = (lambda text: None) if launched is None else (lambda t: launched.note("failed", t))
    end_together(line, note)
    _connect(place, local_device_ids, initialization_timeout, heartbeat_timeout)
    keras.utils.set_random_seed(seed)


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or value <= 0:
        raise OptionError(
            f"{name} must be a number of seconds above 0. Received: {value!r} of type "
            f"{type(value).__name__}. Set {name}=300, for example."
        )


def _place(address: str | None, count: int | None, index: int | None) -> Rendezvous | None:
    given = {"coordinator_address": address, "num_processes": count, "process_id": index}
    if all(value is None for value in given.values()) or count == 1:
        return None
    if address is None or count is None or index is None:
        missing = " and ".join(name for name, value in given.items() if value is None)
        raise OptionError(
            f"To connect processes, {missing} must be known, too, and no cluster that JAX "
            f"recognises says it. Received: {given}. Set {missing}, or start the script with "
            "`millrace launch`."
        )
    whole_number("num_processes", count, 1)
    whole_number("process_id", index, 0)
    if not 0 <= index < count:
        raise OptionError(
            f"process_id must be from 0 to num_processes - 1 = {count - 1}. Received: {index}."
        )
    is_text = isinstance(address, str)
    if not is_text or not address.rpartition(":")[2].isdigit() or not address.rpartition(":")[0]:
        raise OptionError(
            "coordinator_address must be a host and a port, such as 'node1:1234'. "
            f"Received: {address!r}."
        )
    return Rendezvous(address, index, count)


def _enough_threads() -> None:
    """Gives XLA's CPU client more threads than this process has virtual devices.

    A device that waits for others in a collective holds a thread of the pool. With as many threads
    as devices, and stages in other processes, all of them waited and none was left for the program
    that they waited for.
    """
    devices = getattr(jax.config, "jax_num_cpu_devices", 1)
    if devices > 1:
        threads = str(max(os.cpu_count() or 1, _THREADS_PER_DEVICE * devices))
        for name in ("NPROC", "PJRT_NPROC"):
            os.environ.setdefault(name, threads)


def _connect(
    place: Rendezvous, local_device_ids: Any, timeout: int, heartbeat_timeout: int
) -> None:
    _enough_threads()
    _set("jax_cpu_collectives_implementation", "gloo")  # the default of newer versions only
    # It would take SIGTERM, so that a process could no longer be ended by it.
    _set("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        place.address,
        place.count,
        place.index,
        local_device_ids,
        # All machines may knock at JAX's coordinator otherwise.
        coordinator_bind_address=place.address if place.is_local else None,
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        cluster_detection_method="deactivate",
    )


def _set(name: str, value: Any) -> None:
    with contextlib.suppress(AttributeError):  # an option that this version does not have
        jax.config.update(name, value)
