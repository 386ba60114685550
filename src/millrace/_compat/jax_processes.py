"""Private JAX: the devices and processes of a run. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.

The public calls start the devices, after which neither their number nor that of the processes can
be chosen.
"""

import os
from collections.abc import Sequence
from typing import Any

from jax._src import clusters, distributed, xla_bridge


def backends_are_initialized() -> bool:
    """Whether JAX has started its devices, after which their number is fixed.

    No public call tells without starting them.
    """
    return xla_bridge.backends_are_initialized()


def process_index() -> int:
    """Returns the number of this process among those that `jax.distributed` has connected.

    `jax.process_index()` asks the devices, and so starts them.
    """
    return distributed.global_state.process_id


def process_count() -> int:
    """Returns the number of processes that `jax.distributed` has connected; 1 without it."""
    return distributed.global_state.num_processes


def key_value_store() -> Any:
    """Returns the store that `jax.distributed` has for all processes; None without it.

    Its client has no public name. Of its methods, `key_value_set`, `key_value_dir_get`,
    `blocking_key_value_get` and `key_value_delete` are the same in all versions checked.
    """
    return distributed.global_state.client


def recognise_cluster(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    local_device_ids: int | Sequence[int] | None,
    timeout: int,
) -> tuple[str | None, int | None, int | None, int | Sequence[int] | None]:
    """Fills in the facts that Slurm, MPI, Kubernetes and other clusters give about this process.

    `jax.distributed.initialize` does this, too, but connects at once; millrace needs the address
    before that.
    """
    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    detect: Any = clusters.ClusterEnv.auto_detect_unset_distributed_params
    return detect(address, num_processes, process_id, local_device_ids, None, timeout)
