"""The devices on which the replicas of a function run.

processes   devices            replicas=4 of a function
1           0 1 2 3 4 5        0 1 2 3
2           0 1 2 | 3 4 5      0 1 | 3 4
3           0 | 1 | 2          an error
"""

import functools

import jax

from millrace.api.strategy.strategy import strategy_in_scope
from millrace.errors import DeviceError


def devices_for(replicas: int) -> tuple[jax.Device, ...]:
    """Returns a device for each replica: of the strategy in whose scope or `run` the call is.

    Without a strategy these are the devices of JAX's default platform. Each process takes part
    with the same number.

    Raises:
        DeviceError: where there are too few devices.
    """
    strategy = strategy_in_scope()
    present = _of_default_platform() if strategy is None else strategy.devices
    return _shared_out(replicas, present)


@functools.lru_cache(maxsize=64)  # functions ask whenever they are called
def _shared_out(replicas: int, present: tuple[jax.Device, ...]) -> tuple[jax.Device, ...]:
    of_process: dict[int, list[jax.Device]] = {}
    for device in present:
        of_process.setdefault(device.process_index, []).append(device)
    processes, least = len(of_process), min(map(len, of_process.values()))
    share, rest = divmod(replicas, processes)
    if not rest and share <= least:
        return tuple(device for devices in of_process.values() for device in devices[:share])
    each = f" in {processes} processes, which all run the same number" if processes > 1 else ""
    virtual = -(-replicas // processes)
    how = (
        f"`millrace launch --devices-per-process {virtual}`"
        if processes > 1
        else f'millrace.Strategy("cpu:{virtual}") above everything that makes a model or an array, '
        "with the call in its scope or run"
    )
    raise DeviceError(
        f"{replicas} replicas of a function take a device each, and there are {len(present)} "
        f"devices{each}. Set replicas={processes * least}, or use virtual devices of a CPU: {how}."
    )


def _of_default_platform() -> tuple[jax.Device, ...]:
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = default.platform if isinstance(default, jax.Device) else default
    return tuple(jax.devices(platform))
