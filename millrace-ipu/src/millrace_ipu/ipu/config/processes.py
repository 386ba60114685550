"""The devices of a system that spans several processes.

config.experimental.multi_replica_distribution.process_count = 2       popdist sets this

auto_select_ipus = n      -> the first n devices of each process
otherwise                 -> all devices of all processes
"""

import jax

from millrace.errors import DeviceError, OptionError
from millrace.extend import process_count
from millrace_ipu.ipu.config.option import Category


def processes_of(config: Category | None) -> int:
    """Returns the number of processes that a configuration spans; 1 for none."""
    if config is None:
        return 1
    return max(config.experimental.multi_replica_distribution.process_count, 1)


def groups_of_processes(config: Category) -> tuple[tuple[jax.Device, ...], ...]:
    """Returns the one logical device of a system of several processes; nothing for one process.

    Args:
        config: an `IPUConfig`.

    Raises:
        OptionError: if the run has another number of processes, or several logical devices are
            asked for.
        DeviceError: if a process has fewer devices.
    """
    count, number = processes_of(config), config.auto_select_ipus
    if count == 1:
        return ()
    if count != process_count():
        raise OptionError(
            f"multi_replica_distribution.process_count={count}, and the run has {process_count()} "
            "processes. Start it with `millrace poprun`, or leave the option at 0."
        )
    if isinstance(number, list | tuple) and len(number) > 1:
        raise OptionError(
            f"auto_select_ipus={number!r} makes several logical devices, and a run of several "
            f"processes has one. Set auto_select_ipus={sum(number)}."
        )
    devices: list[list[jax.Device]] = [[] for _ in range(count)]
    for device in jax.devices():
        devices[device.process_index].append(device)
    wanted = (number[0] if number else 0) if isinstance(number, list | tuple) else number
    for index, own in enumerate(devices):
        if wanted > len(own):
            raise DeviceError(
                f"auto_select_ipus={wanted} takes {wanted} devices of each process, and process "
                f"{index} has {len(own)}. Start the run with `millrace poprun --num-replicas "
                f"{wanted * count}`, or `millrace launch --devices-per-process {wanted}`."
            )
    return (tuple(device for own in devices for device in own[: wanted or None]),)
