"""The devices that are configured, which every strategy made afterwards runs on."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from millrace._compat.jax import backends_are_initialized
from millrace.errors import DeviceError, OptionError
from millrace.ipu import ahead

logger = logging.getLogger("millrace")


@dataclass(frozen=True)
class System:
    """What was configured.

    `groups` has the devices of each logical one: `/device:IPU:0`, `/device:IPU:1` and so on.
    """

    groups: tuple[tuple[jax.Device, ...], ...]
    allow_recompute: bool = False
    config: Any = None  # a copy of the `IPUConfig`; None where nobody has configured

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """Those of the first logical device."""
        return self.groups[0]


_configured: list[System] = []


def current_system() -> System:
    """Returns what was configured; one device where nobody has."""
    return _configured[-1] if _configured else System(((jax.devices()[0],),))


def reset_system() -> None:
    """Forgets what was configured."""
    _configured.clear()
    ahead.end()
    ahead.end()


def put_in_force(system: System, reset: bool) -> None:
    """Lets strategies made from now on run on a system.

    Args:
        system: to run on.
        reset: whether another system before it gives up its compiled programs.
    """
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
