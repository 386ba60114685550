"""The choice of devices by an `IPUConfig`, and the configured system.

auto_select_ipus = n       -> the first n of `jax.devices()`
auto_select_ipus = [n, m]  -> n of them for the first logical device, m more for the second
select_ipus = k            -> `jax.devices()[k]`

IPUConfig.configure_ipu_system()     -> `configure`
"/device:IPU:k"                      -> `System.groups[k]`
"""

import contextlib
import copy
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import jax

from millrace._compat.jax_processes import backends_are_initialized
from millrace.errors import DeviceError, OptionError
from millrace.ipu.config.categories import DeviceConnectionType
from millrace.ipu.config.option import Category, Option, options
from millrace.ipu.config.processes import groups_of_processes
from millrace.ipu.no_effect import warn_no_effect
from millrace.ipu.pre_compile import begin_pre_compile, end_pre_compile

logger = logging.getLogger("millrace")

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
    if not backends_are_initialized():
        # Without effect where another platform is the default. XLA_FLAGS may have set a number.
        with contextlib.suppress(RuntimeError, ValueError):
            requested = getattr(jax.config, "jax_num_cpu_devices", 0)
            jax.config.update("jax_num_cpu_devices", max(number, requested, 1))
    devices = jax.devices()
    if len(devices) >= number:
        return devices
    hint = ""
    if devices[0].platform == "cpu":
        hint = (
            " JAX can make virtual CPU devices, but only before its first use: call "
            "configure_ipu_system() above everything that builds a model or an array, or start "
            f"with XLA_FLAGS=--xla_force_host_platform_device_count={number}."
        )
    raise DeviceError(
        f"{option} takes {number} devices, and there are {len(devices)}: {list(devices)}.{hint}"
    )


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


def current_system() -> System:
    """Returns the configured system; without a configuration, one of one device."""
    return _configured[-1] if _configured else System(((jax.devices()[0],),))


def reset_system() -> None:
    """Removes the configuration."""
    _configured.clear()
    end_pre_compile()


def configure(config: Category, reset: bool) -> None:
    """Puts a configuration in force, and warns about options without effect.

    Args:
        config: an `IPUConfig`, which is copied.
        reset: whether to drop programs that were compiled under a different configuration.
    """
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
    if before is not None and reset:
        logger.warning(
            "The system was configured before, with other options: it is reset, and its compiled "
            "programs are dropped. Call configure_ipu_system() once, before the first strategy."
        )
        jax.clear_caches()
    _configured[:] = [system]
