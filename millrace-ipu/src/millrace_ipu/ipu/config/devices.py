"""The choice of devices by an `IPUConfig`, and the configured system.

auto_select_ipus = n       -> the first n of `jax.devices()`
auto_select_ipus = [n, m]  -> n of them for the first logical device, m more for the second
select_ipus = k            -> `jax.devices()[k]`

IPUConfig.configure_ipu_system()     -> `configure`
"/device:IPU:k"                      -> `System.groups[k]`

Of several processes (popdist sets their number), `auto_select_ipus = n` is the first n devices of
each, and without it all devices of all processes are one logical device.
"""

import copy
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import jax

from millrace.errors import DeviceError, OptionError
from millrace.extend import ask_for_virtual, devices_of_environment, process_count
from millrace_ipu.ipu.config.categories import DeviceConnectionType
from millrace_ipu.ipu.config.option import Category, Option, options
from millrace_ipu.ipu.environment import read_variables
from millrace_ipu.ipu.pre_compile import begin_pre_compile, end_pre_compile
from millrace_ipu.ipu.release import reset_release
from millrace_ipu.tensorflow.no_operation import warn_no_effect

logger = logging.getLogger("millrace")
_FLAG = "--xla_force_host_platform_device_count"

PerDevice: TypeAlias = int | Sequence[int]  # one number, or one for each logical device
MANY = (int, list, tuple)  # the types of these


class Selected(Option):
    """The option `select_ipus`: different numbers, from 0 on."""

    def checked(self, path: str, value: object) -> object:
        """Returns numbers of devices.

        Raises:
            DTypeError: for a value of another type.
            OptionError: for equal or negative numbers.
        """
        numbers = _as_list(cast(PerDevice, super().checked(path, value)))
        if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
            raise OptionError(
                f"IPUConfig.{path} takes different device numbers from 0 on. Received: {value!r}."
            )
        return value


def _as_list(numbers: PerDevice) -> list[int]:
    return [numbers] if isinstance(numbers, int) else list(numbers)


def find_groups(auto: PerDevice, selected: PerDevice) -> tuple[tuple[jax.Device, ...], ...]:
    """Returns the devices of each logical device.

    Args:
        auto: `auto_select_ipus`: a number of devices, or one for each logical device.
        selected: `select_ipus`: the index of a device in `jax.devices()`, or one for each logical
            device.

    Raises:
        OptionError: if both are set, or a number of devices is below 1.
        DeviceError: if JAX has fewer devices.
    """
    if auto != [] and selected != []:
        raise OptionError(
            f"auto_select_ipus={auto!r} and select_ipus={selected!r} both choose devices. Set one "
            "of them, and leave the other at []."
        )
    if selected != []:
        indices = _as_list(selected)
        devices = _devices(max(indices) + 1, f"select_ipus={selected!r}")
        return tuple((devices[index],) for index in indices)
    sizes = _sizes(auto)
    devices = _devices(sum(sizes), f"auto_select_ipus={auto!r}")
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return tuple(tuple(devices[end - size : end]) for end, size in zip(ends, sizes, strict=True))


def _sizes(auto: PerDevice) -> list[int]:
    sizes = _as_list(auto) or [1]
    if min(sizes) < 1:
        raise OptionError(
            f"auto_select_ipus takes numbers of devices from 1 on. Received: {auto!r}. Set "
            "auto_select_ipus=1 for one device."
        )
    return sizes


def _devices(number: int, option: str) -> Sequence[jax.Device]:
    ask_for_virtual(number)
    devices = jax.devices()
    if len(devices) >= number:
        return devices
    hint = f" Set it to {len(devices)} or fewer."
    if devices[0].platform == "cpu":
        own = devices_of_environment()
        hint = (
            f" JAX makes virtual CPU devices at its first use, before which nothing asked for "
            f"{number}. Run the program with `millrace run --devices {number}`, or set "
            f"XLA_FLAGS={_FLAG}={number}; or call configure_ipu_system() above everything that "
            "builds a model or an array."
            if own is None or own >= number
            else f" The environment sets {own}. Set the environment variable "
            f"JAX_NUM_CPU_DEVICES={number} instead."
        )
    raise DeviceError(
        f"{option} takes {number} devices, and there are {len(devices)}: {list(devices)}.{hint}"
    )


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


@dataclass(frozen=True)
class System:
    """A configured system of devices.

    `groups` has the devices of each logical one: `/device:IPU:0`, `/device:IPU:1` and so on.
    """

    groups: tuple[tuple[jax.Device, ...], ...]
    allow_recompute: bool = False
    config: Category | None = None  # a copy of the `IPUConfig`

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices of the first logical device."""
        return self.groups[0]

    def devices_of(self, ipu_device: str) -> tuple[jax.Device, ...]:
        """Returns the devices of a logical device.

        Raises:
            OptionError: if the system has no logical device of that name.
        """
        match, number = re.fullmatch(r"/device:IPU:(\d+)", ipu_device), len(self.groups)
        if not match or int(match[1]) >= number:
            raise OptionError(
                f"ipu_device must be '/device:IPU:0' up to {number - 1}, for each logical device "
                f"of the system. Received: {ipu_device!r}. auto_select_ipus=[1, 1] makes two "
                "logical devices."
            )
        return self.groups[int(match[1])]


_configured: list[System] = []
# Called with a new system, before and after it is put in force. The first may refuse it; the
# second get None where the configuration is removed.
checks: list[Callable[[System], None]] = []
followers: list[Callable[[System | None], None]] = []


def current_system() -> System:
    """Returns the configured system; without a configuration, one of one device."""
    return _configured[-1] if _configured else System(((jax.devices()[0],),))


def reset_system() -> None:
    """Removes the configuration."""
    _configured.clear()
    reset_release()
    for follow in followers:
        follow(None)
    end_pre_compile()


def configure(config: Category, reset: bool) -> None:
    """Puts a configuration in force, and warns about options without effect.

    Args:
        config: an `IPUConfig`, which is copied.
        reset: whether to drop programs that were compiled under a different configuration.
    """
    read_variables()  # which programs set after the import, too
    for path, option, value in options(config):
        if option.advice and value != option.default:
            warn_no_effect(f"IPUConfig.{path}", option.advice)
    groups = groups_of_processes(config) or find_groups(config.auto_select_ipus, config.select_ipus)
    _put_in_force(System(groups, config.allow_recompute, copy.deepcopy(config)), reset)
    if config.device_connection.type is DeviceConnectionType.PRE_COMPILE:
        begin_pre_compile()
    else:
        end_pre_compile()


def _put_in_force(system: System, reset: bool) -> None:
    before = _configured[-1] if _configured else None
    if before is not None and before.config == system.config:
        return
    for check in checks:
        check(system)
    if before is not None and reset:
        logger.warning(
            "The system was configured before, with other options: it is reset, its compiled "
            "programs are dropped, and its strategies get the new devices. Call "
            "configure_ipu_system() once, before the first strategy, to compile once."
        )
        jax.clear_caches()
    _configured[:] = [system]
    for follow in followers:
        follow(system)
