"""The devices that an `IPUConfig` chooses, and the system that is in force.

auto_select_ipus = n       -> the first n of `jax.devices()`
auto_select_ipus = [n, m]  -> n of them for the first logical device, m more for the second
select_ipus = k            -> `jax.devices()[k]`

IPUConfig.configure_ipu_system()     -> `configure`
"/device:IPU:k"                      -> the k-th of `System.groups`
"""

import contextlib
import copy
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from millrace._compat.jax_processes import backends_are_initialized
from millrace.errors import DeviceError, OptionError
from millrace.ipu.config.categories import DeviceConnectionType
from millrace.ipu.config.option import Option, options
from millrace.ipu.inert import inert
from millrace.ipu.pre_compile import begin_pre_compile, end_pre_compile

logger = logging.getLogger("millrace")

MANY = (int, list, tuple)  # one number, or one for each logical device


class Selected(Option):
    """The option `select_ipus`: different numbers, from 0 on."""

    def checked(self, path: str, value: Any) -> Any:
        """Returns numbers of devices.

        Raises:
            DTypeError: for a value of another type.
            OptionError: for numbers that no devices have, or that are equal.
        """
        value = super().checked(path, value)
        given = [value] if isinstance(value, int) else list(value)
        if len(set(given)) < len(given) or min(given, default=0) < 0:
            raise OptionError(
                f"IPUConfig.{path} takes different device numbers from 0 on. Received: {value!r}."
            )
        return value


def find_groups(auto: Any, selected: Any) -> tuple[tuple[jax.Device, ...], ...]:
    """Returns the devices of each logical device.

    Args:
        auto: `auto_select_ipus`: a number of devices, or one for each logical device.
        selected: `select_ipus`: the place of a device in `jax.devices()`, or one for each logical
            device.

    Raises:
        OptionError: if both are given, or a number is none.
        DeviceError: if there are fewer devices.
    """
    if auto != [] and selected != []:
        raise OptionError(
            f"auto_select_ipus={auto!r} and select_ipus={selected!r} both choose devices. Set one "
            "of them, and leave the other at []."
        )
    if selected != []:
        places = [selected] if isinstance(selected, int) else list(selected)
        present = _present(max(places) + 1, f"select_ipus={selected!r}")
        return tuple((present[place],) for place in places)
    sizes = _sizes(auto)
    present = _present(sum(sizes), f"auto_select_ipus={auto!r}")
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    return tuple(tuple(present[end - size : end]) for end, size in zip(ends, sizes, strict=True))


def _sizes(auto: Any) -> list[int]:
    sizes = [auto] if isinstance(auto, int) else list(auto) or [1]
    if min(sizes) < 1:
        raise OptionError(
            f"auto_select_ipus takes numbers of devices from 1 on. Received: {auto!r}. Set "
            "auto_select_ipus=1 for one device."
        )
    return sizes


def _present(number: int, option: str) -> Sequence[jax.Device]:
    if not backends_are_initialized():
        # Of no effect where another platform is the default. XLA_FLAGS may have set a number.
        with contextlib.suppress(RuntimeError, ValueError):
            asked = getattr(jax.config, "jax_num_cpu_devices", 0)
            jax.config.update("jax_num_cpu_devices", max(number, asked, 1))
    present = jax.devices()
    if len(present) >= number:
        return present
    hint = ""
    if present[0].platform == "cpu":
        hint = (
            " JAX makes virtual ones on CPU if it is told before its first use: call "
            "configure_ipu_system() above everything that builds a model or an array, or start "
            f"with XLA_FLAGS=--xla_force_host_platform_device_count={number}."
        )
    raise DeviceError(
        f"{option} takes {number} devices, and there are {len(present)}: {list(present)}.{hint}"
    )


@dataclass(frozen=True)
class System:
    """A configured system of devices.

    `groups` has the devices of each logical one: `/device:IPU:0`, `/device:IPU:1` and so on.
    """

    groups: tuple[tuple[jax.Device, ...], ...]
    allow_recompute: bool = False
    config: Any = None  # a copy of the `IPUConfig`; None without one

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """Those of the first logical device."""
        return self.groups[0]

    def devices_of(self, ipu_device: str) -> tuple[jax.Device, ...]:
        """Returns those of a logical device.

        Raises:
            OptionError: if the system has none of that name.
        """
        match, number = re.fullmatch(r"/device:IPU:(\d+)", ipu_device), len(self.groups)
        if not match or int(match[1]) >= number:
            raise OptionError(
                f"ipu_device must be '/device:IPU:0' up to {number - 1}, for each logical device "
                f"of the system. Received: {ipu_device!r}. auto_select_ipus=[1, 1] makes two."
            )
        return self.groups[int(match[1])]


_configured: list[System] = []


def current_system() -> System:
    """Returns the configured system; one device without a configuration."""
    return _configured[-1] if _configured else System(((jax.devices()[0],),))


def reset_system() -> None:
    """Forgets what was configured."""
    _configured.clear()
    end_pre_compile()


def configure(config: Any, reset: bool) -> None:
    """Puts a configuration in force, and says which of its options have no effect.

    Args:
        config: an `IPUConfig`, of which a copy is kept.
        reset: whether another configuration before gives up its compiled programs.
    """
    for path, option, value in options(config):
        if option.advice and value != option.default:
            inert(f"IPUConfig.{path}", option.advice)
    groups = find_groups(config.auto_select_ipus, config.select_ipus)
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
            "The system was configured before, with other options: it is reset, and what was "
            "compiled for it is given up. Call configure_ipu_system() once, before the first "
            "strategy."
        )
        jax.clear_caches()
    _configured[:] = [system]
