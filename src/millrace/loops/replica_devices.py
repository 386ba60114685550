"""The devices on which the replicas of a function run.

processes   devices            replicas=4 of a function
1           0 1 2 3 4 5        0 1 2 3
2           0 1 2 | 3 4 5      0 1 | 3 4
3           0 | 1 | 2          a batch on one device, in each process
"""

import functools
import logging

import jax

from millrace.strategy.strategy import strategy_in_scope

logger = logging.getLogger("millrace")


def devices_for(replicas: int) -> tuple[jax.Device, ...]:
    """Returns a device for each replica: of the strategy in whose scope or `run` the call is.

    Without a strategy these are the devices of JAX's default platform. Each process takes part
    with the same number. Where there are too few devices, the result is empty.
    """
    if replicas == 1:
        return ()
    strategy = strategy_in_scope()
    present = _of_default_platform() if strategy is None else strategy.devices
    return _shared_out(replicas, present)


@functools.lru_cache(maxsize=64)  # functions ask whenever they are called
def _shared_out(replicas: int, present: tuple[jax.Device, ...]) -> tuple[jax.Device, ...]:
    of_process: dict[int, list[jax.Device]] = {}
    for device in present:
        of_process.setdefault(device.process_index, []).append(device)
    share, rest = divmod(replicas, len(of_process))
    if not rest and share <= min(map(len, of_process.values())):
        return tuple(device for devices in of_process.values() for device in devices[:share])
    logger.info(
        "%d replicas of a function run as a batch on one device: there are %d devices in %d "
        "processes, and each process needs devices for the same number of replicas.",
        replicas,
        len(present),
        len(of_process),
    )
    return ()


def _of_default_platform() -> tuple[jax.Device, ...]:
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = default.platform if isinstance(default, jax.Device) else default
    return tuple(jax.devices(platform))
