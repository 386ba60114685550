"""Sums over replicas on the host: one replica in each process, all processes on one machine.

    gradients  ->  custom call  ->  memory of all processes  ->  sums      `shared_memory.py`

Two processes of one core each took 0.4 to 4 ms for a sum of 100 KB over gloo, and 0.1 ms through
memory; for 5 MB 4 to 5 ms, and 2.4 ms.

XLA may run custom calls of one program in another order in each process, unless one needs the
result of another: `after` makes it need one.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from millrace._compat import xla_functions
from millrace._compat.jax_processes import process_count
from millrace.options import NO_OFFLOAD
from millrace.plan import Plan
from millrace.processes.shared_memory import shared_memory

_TARGET = "millrace_add_up"
_PACKED = 1 << 16  # numbers of an array, below which it is concatenated with others


def sums_on_host(plan: Plan) -> bool:
    """Whether the values of the replicas of a model in one piece are added up on the host."""
    # Its programs must have no other sums, or one process could wait in one of these and the
    # other in one of those: of logs, or between the parts of sharded values.
    replication = plan.replication
    is_sharded = replication.shard_weights or replication.shard_optimizer_state
    if plan.step_logs or is_sharded or plan.offload != NO_OFFLOAD:
        return False
    owners = [device.process_index for device in plan.group.devices]
    if plan.group.platform != "cpu" or owners != list(range(process_count())):
        return False
    memory = shared_memory()
    if memory is None:
        return False

    def add_up(arguments: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        is_update = len(arguments) == len(results)
        memory.add_up(arguments[: len(results)], results, ends_update=is_update)

    xla_functions.register(_TARGET, add_up)
    return xla_functions.is_usable(_TARGET)


def can_add(values: Sequence[jax.Array]) -> bool:
    """Whether the host has sums of these dtypes."""
    return all(value.dtype in xla_functions.DTYPES for value in values)


def add_up_on_host(values: Sequence[jax.Array], after: Sequence[jax.Array] = ()) -> list[jax.Array]:
    """Returns the sum of each value over all replicas; runs under the mesh's axis.

    Args:
        values: of this replica.
        after: values that follow from an earlier sum of the program, which must be over; empty
            for the gradients of an update.
    """
    groups = _groups(values)
    packed = [jnp.concatenate([jnp.ravel(values[k]) for k in group]) for group in groups]
    specs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in packed]
    aliases = {k: k for k in range(len(packed))}
    call = jax.ffi.ffi_call(_TARGET, specs, input_output_aliases=aliases)
    added = call(*packed, *(jnp.ravel(value)[:1] for value in after))
    sums = list(values)
    for group, array in zip(groups, added, strict=True):
        begin = 0
        for k in group:
            end = begin + math.prod(values[k].shape)
            sums[k] = array[begin:end].reshape(values[k].shape)
            begin = end
    return sums


def _groups(values: Sequence[jax.Array]) -> list[list[int]]:
    """Returns the indices of values that are concatenated: small ones, by dtype."""
    large = [[k] for k, value in enumerate(values) if value.size >= _PACKED]
    small: dict[jnp.dtype, list[int]] = {}
    for k, value in enumerate(values):
        if value.size < _PACKED:
            small.setdefault(value.dtype, []).append(k)
    return [*large, *small.values()]
