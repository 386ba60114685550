"""Runs on several processes or machines: `millrace.distributed.initialize()`.

It calls `jax.distributed.initialize` after the rendezvous of the processes
(`run/processes/bootstrap.py`), with a common seed and a common end (`run/processes/failure.py`).
"""

import contextlib
import logging
import multiprocessing
import os
import random
from collections.abc import Sequence

import jax
import keras

from millrace._compat.jax_processes import backends_are_initialized, recognise_cluster
from millrace.base.devices import spare_threads
from millrace.base.options import whole_number
from millrace.errors import DeviceError, OptionError, ProcessError
from millrace.run.processes.agreement import Launched, process_count, process_index
from millrace.run.processes.bootstrap import Rendezvous, meet
from millrace.run.processes.failure import end_together, ends_together
from millrace.run.processes.ray_workers import RayWorker, when_this_thread_ends

_LOGGER = logging.getLogger("millrace")
# A process that is done waits for the others, which may save or evaluate for long. If one of them
# dies meanwhile, the control channel reports it.
_SHUTDOWN_SECONDS = 24 * 3600
_BIND_VARIABLE = "JAX_COORDINATOR_BIND_ADDRESS"  # of JAX: where process 0 listens


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

    Without arguments it takes them from `millrace launch`, from Ray Train, or from JAX, which
    recognises Slurm, Open MPI, Kubernetes and TPU pods. If none of them started this process it
    does nothing, so that the same script also runs alone.

    Whoever reaches the address can take part, so the network must be trusted. Processes of another
    run that `millrace launch` or Ray Train has started are told so.

    All processes get the seed of process 0 for `random`, NumPy and Keras, because all of them
    build the same weights. To set another seed, call `keras.utils.set_random_seed` afterwards.

    Args:
        coordinator_address: host and port of process 0, such as "node1:1234". The port must be
            free there, and reachable from all other processes.
        num_processes: number of processes in the run.
        process_id: number of this process, from 0.
        local_device_ids: numbers of the accelerators of this machine to use. None uses all, or
            the one that the cluster assigns.
        initialization_timeout: seconds to wait for all processes to connect.
        heartbeat_timeout: seconds after which a machine that does not answer counts as failed.
            The death of a process is noticed at once.

    Raises:
        DeviceError: if JAX has started already.
        OptionError: if some of the first three arguments are missing, and no launcher or cluster
            supplies them.
        ProcessError: if it is called twice, the port is in use, not all processes connect, or this
            one belongs to another run.
    """
    if multiprocessing.parent_process() is not None:
        _LOGGER.info("distributed.initialize() does nothing in a worker of multiprocessing.")
        return
    _check_seconds("initialization_timeout", initialization_timeout)
    _check_seconds("heartbeat_timeout", heartbeat_timeout)
    given = (coordinator_address, num_processes, process_id)
    worker = RayWorker.this() if given == (None, None, None) else None
    is_connected = _is_connected(by_ray=worker is not None)
    launched = Launched.take()
    if launched is not None:
        rendezvous = _of_launcher(launched)
    elif worker is not None:
        address, run = worker.rendezvous()
        rendezvous = _rendezvous(address, worker.count, worker.rank, run)
    else:
        address, count, index, local_device_ids = recognise_cluster(
            *given, local_device_ids, initialization_timeout
        )
        rendezvous = _rendezvous(address, count, index)
    if rendezvous is None:
        _LOGGER.info("No cluster and no launcher started this process: it runs alone.")
        return
    # Drawn from the system, so that the state of the script's own generators stays as it is.
    seed = random.SystemRandom().randrange(2**31)
    meeting = meet(rendezvous, seed, initialization_timeout, heartbeat_timeout)
    note = (lambda text: None) if launched is None else (lambda t: launched.note("failed", t))
    end_together(meeting.channel, note)
    if worker is not None:
        when_this_thread_ends(meeting.channel.leave)
    if not is_connected:
        _connect(
            rendezvous,
            meeting.bind_address,
            local_device_ids,
            initialization_timeout,
            heartbeat_timeout,
        )
    keras.utils.set_random_seed(meeting.seed)


def _of_launcher(launched: Launched) -> Rendezvous | None:
    launched.end_with_launcher()
    launched.note(f"initialized-{launched.process_id}")
    if launched.devices is not None:
        _set("jax_num_cpu_devices", launched.devices)
    return _rendezvous(
        launched.coordinator_address, launched.num_processes, launched.process_id, launched.run
    )


def _is_connected(by_ray: bool) -> bool:
    """Whether Ray's `JaxTrainer` has connected JAX; millrace then adds its reports of failures."""
    if jax.distributed.is_initialized():
        if by_ray and not ends_together():
            return True
        raise ProcessError(
            f"Process {process_index()} of {process_count()} is connected already. Call "
            "millrace.distributed.initialize() or jax.distributed.initialize() once, not both."
        )
    if backends_are_initialized():
        raise DeviceError(
            "JAX has already started without other processes, and can no longer connect with "
            "them. Move the line\n    millrace.distributed.initialize()\n"
            "above everything that builds a model or an array."
        )
    return False


def _check_seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or value <= 0:
        raise OptionError(
            f"{name} must be a number of seconds above 0. Received: {value!r} of type "
            f"{type(value).__name__}. Set {name}=300, for example."
        )


def _rendezvous(
    address: str | None, count: int | None, index: int | None, run: str = ""
) -> Rendezvous | None:
    arguments = {"coordinator_address": address, "num_processes": count, "process_id": index}
    if all(value is None for value in arguments.values()) or count == 1:
        return None
    if address is None or count is None or index is None:
        missing = " and ".join(name for name, value in arguments.items() if value is None)
        raise OptionError(
            f"To connect processes, set {missing}, too: no cluster that JAX recognises supplies "
            f"it. Received: {arguments}. Set {missing}, or start the script with `millrace launch`."
        )
    whole_number("num_processes", count, 1)
    whole_number("process_id", index, 0)
    if not 0 <= index < count:
        raise OptionError(
            f"process_id must be from 0 to num_processes - 1 = {count - 1}. Received: {index}."
        )
    _check_address("coordinator_address", address)
    bind_address = os.environ.get(_BIND_VARIABLE)
    if bind_address is not None:
        _check_address(_BIND_VARIABLE, bind_address)
    return Rendezvous(address, index, count, run, bind_address)


def _check_address(name: str, address: object) -> None:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isdigit():
        raise OptionError(
            f"{name} must be a host and a port, such as 'node1:1234'. Received: {address!r}."
        )


def _connect(
    rendezvous: Rendezvous,
    bind_address: str | None,
    local_device_ids: int | Sequence[int] | None,
    timeout: int,
    heartbeat_timeout: int,
) -> None:
    spare_threads()
    _set("jax_cpu_collectives_implementation", "gloo")  # the default of newer versions only
    # The service handles SIGTERM, which could no longer end a process.
    _set("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        rendezvous.address,
        rendezvous.count,
        rendezvous.index,
        local_device_ids,
        # Otherwise JAX's coordinator would listen on all addresses of the machine.
        coordinator_bind_address=bind_address,
        initialization_timeout=timeout,
        heartbeat_timeout_seconds=heartbeat_timeout,
        shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        cluster_detection_method="deactivate",
    )


def _set(name: str, value: object) -> None:
    with contextlib.suppress(AttributeError):  # an option that this version does not have
        jax.config.update(name, value)


def __dir__() -> list[str]:
    """Lists the name for users, without what it needs."""
    return ["initialize"]
