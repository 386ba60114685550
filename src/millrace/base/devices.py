"""The devices of a strategy, their division into groups, and layouts of arrays on them.

devices of the strategy     0  1  2  3  4  5  6  7        a pipeline of two stages
replica                     0     1     2     3           consecutive devices
group of stage 0            0     2     4     6           one device of each replica
group of stage 1               1     3     5     7
"""

import contextlib
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from millrace._compat.jax_processes import backends_are_initialized, end_unused_backends
from millrace._compat.jax_targets import belongs_here
from millrace.base.pytrees import Array
from millrace.base.targets.target import target_of
from millrace.errors import DeviceError, OptionError, PlanError

_THREADS_PER_DEVICE = 4
DEVICES_FLAG = "--xla_force_host_platform_device_count"
REPLICA = "replica"  # the axis of every mesh
# Specs of a value on a mesh: the same on all replicas, or split over them along its first axis.
WHOLE, PARTS = PartitionSpec(), PartitionSpec(REPLICA)


@dataclass(frozen=True)
class DeviceGroup:
    """The devices that run one stage, one for each replica. A model in one piece has one group."""

    devices: tuple[jax.Device, ...]

    @property
    def replicas(self) -> int:
        return len(self.devices)

    @property
    def platform(self) -> str:
        """Platform of the devices, as JAX names it."""
        return self.devices[0].platform

    @functools.cached_property
    def mesh(self) -> Mesh:
        """The devices along the axis of replicas."""
        return Mesh(np.array(self.devices), (REPLICA,))

    @functools.cached_property
    def local(self) -> tuple[int, ...]:
        """Replicas whose device belongs to this process."""
        return tuple(k for k, device in enumerate(self.devices) if belongs_here(device))

    @functools.cached_property
    def is_local(self) -> bool:
        """Whether all devices belong to this process."""
        return len(self.local) == self.replicas

    @functools.cached_property
    def whole(self) -> jax.sharding.Sharding:
        """Layout of a value that is the same on every replica."""
        if self.replicas == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec())

    def split(self, axis: int) -> jax.sharding.Sharding:
        """Returns the layout of a value that is split evenly over the replicas along `axis`."""
        if self.replicas == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(*[None] * axis, REPLICA))


@functools.lru_cache(maxsize=64)  # asked for in each call of a function
def share_out(devices: tuple[jax.Device, ...], size: int) -> tuple[DeviceGroup, ...]:
    """Returns `size` device groups, with as many replicas as the devices suffice for.

    Raises:
        PlanError: if the devices are not a multiple of `size`.
    """
    number = len(devices)
    if number % size:
        fitting = [n for n in (number - number % size, number - number % size + size) if n]
        raise PlanError(
            f"One replica of the pipeline takes {size} devices, and the strategy has {number}, "
            f"which is not a multiple of {size}. Set devices to {' or '.join(map(str, fitting))}, "
            "or let stages share devices with device_mapping in set_pipelining_options()."
        )
    return tuple(DeviceGroup(tuple(devices[group::size])) for group in range(size))


def put_parts(local: np.ndarray, group: DeviceGroup, axis: int) -> jax.Array:
    """Moves the entries of this process's replicas to their devices.

    Args:
        local: a host array with one entry along `axis` for each of `group.local`; without that
            axis if the group has one device.
        group: devices of the replicas.
        axis: of the replicas.
    """
    sharding = group.split(axis)
    if group.is_local:
        return jax.device_put(local, sharding)
    shape = (*local.shape[:axis], group.replicas, *local.shape[axis + 1 :])
    return jax.make_array_from_process_local_data(sharding, local, shape)


def home(devices: Sequence[jax.Device]) -> jax.Device:
    """Returns the first device of this process.

    Raises:
        DeviceError: if all devices belong to other processes.
    """
    for device in devices:
        if belongs_here(device):
            return device
    here = jax.process_index()
    owners = sorted({device.process_index for device in devices})
    raise DeviceError(
        f"None of the strategy's devices {list(devices)} belongs to this process, number {here}: "
        f"they belong to {owners}. Every process takes part in a strategy: set devices=None for "
        "the devices of all processes, or devices=jax.local_devices() for a separate strategy in "
        "each process."
    )


def device_name(device: jax.Device) -> str:
    """Returns the name of a device, as reports and plans show it."""
    kind = target_of(device)
    return str(device) if kind is None else f"{kind.name}:{device.id}"


def put_on(value: Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """Moves `value` to the devices of `sharding`. Every process that takes part has all of it."""
    if isinstance(value, jax.Array) and value.sharding == sharding:
        return value
    if sharding.is_fully_addressable and getattr(value, "is_fully_addressable", True):
        return jax.device_put(value, sharding)
    host = np.asarray(value)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def find_devices(devices: object) -> tuple[jax.Device, ...]:
    """Returns the JAX devices for the argument `devices` of a strategy.

    Args:
        devices: None for all devices of the default platform, the number of devices to use, a
            platform and a number such as `"cpu:8"` or `"gpu:2"`, or a sequence of JAX devices.
            Virtual CPU devices are created unless JAX has started, and something uses it.

    Raises:
        OptionError: if `devices` is anything else.
        DeviceError: if there are fewer devices, or those of JAX are in use already.
    """
    spare_threads()
    if devices is None:
        return tuple(jax.devices())
    if isinstance(devices, int) and not isinstance(devices, bool):
        return _first(devices, None)
    if isinstance(devices, str):
        match = re.fullmatch(r"(cpu|gpu|tpu|cuda|rocm)(?::(\d+))?", devices.lower())
        if not match:
            raise OptionError(
                "devices, given as text, is a platform and a number of devices, such as 'cpu:8' "
                f"or 'gpu:2'. Received: devices={devices!r}."
            )
        platform, number = match[1], match[2]
        if number and platform == "cpu":
            _make_virtual(int(number))
        return _first(int(number), platform) if number else tuple(_devices_of(platform))
    if isinstance(devices, Sequence) and devices and all(map(_is_device, devices)):
        if len(set(devices)) < len(devices):
            raise OptionError(f"devices names a device twice. Received: devices={devices!r}.")
        return tuple(devices)
    raise OptionError(
        "devices must be None, a number, text such as 'cpu:8', or a sequence of JAX devices. "
        f"Received: devices={devices!r}."
    )


def devices_of(ids: Sequence[tuple[str, int]]) -> tuple[jax.Device, ...]:
    """Returns the devices with a platform and a number each.

    Who keeps these, and no devices, does not keep JAX from starting again with more of them.
    """
    platforms = {platform for platform, _ in ids}
    present = {(d.platform, d.id): d for each in platforms for d in jax.devices(each)}
    return tuple(present[each] for each in ids)


def _is_device(device: object) -> bool:
    return isinstance(device, jax.Device)


def _devices_of(platform: str | None) -> Sequence[jax.Device]:
    try:
        return jax.devices(platform)
    except RuntimeError as error:
        present = sorted({device.platform for device in jax.devices()})
        raise DeviceError(
            f"There is no {platform} here: JAX has {', '.join(present)}. Set devices to one of "
            f"these, or install the JAX plugin for {platform}."
        ) from error


def _first(number: int, platform: str | None) -> tuple[jax.Device, ...]:
    if number < 1:
        raise OptionError(f"devices must be at least 1. Received: {number}.")
    present = _devices_of(platform)
    if number > len(present):
        name = present[0].platform
        hint = (
            f" Set devices='cpu:{number}' to train on {number} virtual CPU devices."
            if name == "cpu"
            else f" Set devices={len(present)} or fewer."
        )
        raise DeviceError(
            f"Asked for {number} devices of {platform or 'the default platform'}, JAX has "
            f"{len(present)} ({name}).{hint}"
        )
    return tuple(present[:number])


def devices_of_environment() -> int | None:
    """Returns the number of virtual CPU devices that the user has set; None if there is none.

    It is that of JAX_NUM_CPU_DEVICES, or else of the flag in XLA_FLAGS.
    """
    value = os.environ.get("JAX_NUM_CPU_DEVICES", "").strip()
    if value.isdecimal():
        return int(value)
    flags = re.findall(rf"{DEVICES_FLAG}=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return int(flags[-1]) if flags else None


def ask_for_virtual(number: int) -> None:
    """Has JAX start with at least so many virtual CPU devices, unless the user has set a number.

    Without effect once JAX has started, or where another platform is the default.
    """
    if devices_of_environment() is None:
        _ask_for(number)


def _ask_for(number: int) -> None:
    if not backends_are_initialized():
        with contextlib.suppress(RuntimeError, ValueError):
            # Another strategy may have asked for more devices before.
            asked = getattr(jax.config, "jax_num_cpu_devices", 0)
            jax.config.update("jax_num_cpu_devices", max(number, asked, 1))
        spare_threads()


def spare_threads() -> None:
    """Gives XLA's CPU client more threads than this process has virtual devices.

    A device that waits in a collective operation holds a thread of the pool, and so does one that
    calls a Python function of the user. With only as many threads as devices, all of them waited
    and none was left for the copy or the program that they waited for. Without effect once JAX
    has started, and where the environment sets more threads than that.
    """
    asked = getattr(jax.config, "jax_num_cpu_devices", 1)
    devices = max(asked, devices_of_environment() or 1)
    if devices > 1:
        threads = max(os.cpu_count() or 1, _THREADS_PER_DEVICE * devices)
        for name in ("NPROC", "PJRT_NPROC"):
            given = os.environ.get(name, "")
            os.environ[name] = str(max(threads, int(given) if given.isdecimal() else 0))


def _make_virtual(number: int) -> None:
    # XLA_FLAGS may have set a number already; the check below tells whether it suffices.
    _ask_for(number)
    if len(_devices_of("cpu")) < number and end_unused_backends():
        _ask_for(number)
    present = len(_devices_of("cpu"))
    if present < number:
        raise DeviceError(
            f"devices='cpu:{number}' needs {number} CPU devices, and JAX had already started with "
            f"{present}, which the program uses by now. Move the line\n"
            f"    strategy = millrace.Strategy(devices='cpu:{number}')\n"
            "above everything that builds a model or an array, or keeps a device of JAX."
        )


spare_threads()  # where the environment asks for devices, before the user's program starts JAX
