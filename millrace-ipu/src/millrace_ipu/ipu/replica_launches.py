"""Functions that run as a replica on each device of a system, or on each group of shards.

    devices of the system    0 1 2 3     functions compiled inside of `launching(devices)`
    no shards                0 1 2 3     four replicas
    ipu_shard(1)             0   2       two, each of which has two devices and computes on one

Where the launch adds gradients up, the outermost optimizer does it, before it clips, maps or
records them; not where one of them has `takes_means`, and averages itself.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import jax
import keras

from millrace.errors import PlanError
from millrace.extend import (
    ReplicaLaunch,
    ScopedValue,
    cross_replica_sum,
    launch_in_force,
    replicas,
    wrapped_chain,
)
from millrace_ipu.pytrees import Gradient

_is_reduced = ScopedValue(False)  # whether an outer optimizer sees to the replicas' gradients


class SystemLaunch(ReplicaLaunch):
    """The devices for the replicas of a function, each of which takes `shards` of them."""

    def __init__(self, devices: Sequence[jax.Device], adds_gradients: bool):
        super().__init__(devices)
        self.adds_gradients = adds_gradients
        self.shards = 1  # grows with the shards that the function uses in its first trace

    @property
    def of_replicas(self) -> tuple[jax.Device, ...]:
        """The first device of each replica.

        Raises:
            PlanError: if devices would be left over.
        """
        count = len(self.devices)
        if count % self.shards:
            raise PlanError(
                f"The program uses {self.shards} shards, and the system has {count} devices, "
                f"which is not a multiple of that. Configure {self.shards} devices, or a multiple "
                "of it for several replicas."
            )
        return self.devices[:: self.shards]

    @property
    def key(self) -> Hashable:
        """The devices and the rule for gradients, as part of the key of a program."""
        return self.devices, self.adds_gradients


def launching(
    devices: Sequence[jax.Device], adds_gradients: bool = False
) -> AbstractContextManager[ReplicaLaunch | None]:
    """Runs the functions that are compiled inside as replicas on these devices.

    Args:
        devices: the devices.
        adds_gradients: whether optimizers apply the sum of the replicas' gradients.
    """
    return launch_in_force.bound_to(SystemLaunch(devices, adds_gradients))


def current_launch() -> SystemLaunch | None:
    """Returns the launch that surrounds the call or the trace; None outside of `launching`."""
    launch = launch_in_force.get()
    return launch if isinstance(launch, SystemLaunch) else None


@contextmanager
def added_up(
    optimizer: keras.optimizers.Optimizer, gradients: Iterable[Gradient]
) -> Iterator[list[Gradient]]:
    """Gives the gradients to apply inside: their sums over replicas, where the launch asks for it.

    Args:
        optimizer: the outermost one so far.
        gradients: of this replica.
    """
    gradients, launch = list(gradients), current_launch()
    if launch is None or not launch.adds_gradients or replicas() == 1 or _is_reduced.get():
        yield gradients
        return
    if not any(getattr(inner, "takes_means", False) for inner in wrapped_chain(optimizer)):
        sums = iter(cross_replica_sum([g for g in gradients if g is not None]))
        gradients = [None if g is None else next(sums) for g in gradients]
    with _is_reduced.bound_to(True):
        yield gradients
