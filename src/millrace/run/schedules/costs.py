"""The costs of an update, such as measured ones: tasks, transfers, dispatch, and what follows them.

    host      dispatch 0F0, 0F1, ...        of each task, ahead of the device group
    group 0   |0F0 0F1 ... 0B0 0B1          tasks
    link          >>>      <<<              transfers: latency + bytes / bandwidth
    all                           sum of gradients over replicas, update of the weights

All are in one unit of time, which is that of the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.run.schedules.task import Pass

StageCosts = Mapping[Pass, Sequence[float]]
"""The time of each pass, by stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCosts:
    """The costs of one update of a pipeline."""

    tasks: StageCosts
    transfer: float = 0.0  # of a result from one device group to another
    transfer_work: float = 0.0  # of a transfer, for each of its two groups, if the core is shared
    dispatch: float = 0.0  # of a task, by the host of its device group
    is_core_shared: bool = False  # dispatch and transfers take time of the core that computes
    gradient_sum: float = 0.0  # over replicas, once in an update
    update: float = 0.0  # of the weights of a device group


def equal_stages(cost: Mapping[Pass, float], num_stages: int) -> StageCosts:
    """Returns costs that are the same for all stages."""
    return {kind: (each,) * num_stages for kind, each in cost.items()}


def transfer_time(nbytes: float, bandwidth: float, latency: float) -> float:
    """Returns the time of a transfer.

    Args:
        nbytes: bytes that a stage sends for one micro-batch.
        bandwidth: bytes in a unit of time.
        latency: time of a transfer of nothing.
    """
    return latency + nbytes / bandwidth


def ring_sum_time(nbytes: float, replicas: int, bandwidth: float, latency: float) -> float:
    """Returns the time of a sum over replicas in a ring.

    A ring of n sends n - 1 parts of each array to the next replica to add them up, and n - 1 parts
    to hand the sums out: 2 (n - 1) steps, in each of which an n-th of the bytes moves.

    Args:
        nbytes: bytes of the gradients of one device group.
        replicas: number of replicas.
        bandwidth: bytes in a unit of time, from one replica to the next.
        latency: time of a step besides its bytes.
    """
    return 2 * (replicas - 1) * transfer_time(nbytes / replicas, bandwidth, latency)
