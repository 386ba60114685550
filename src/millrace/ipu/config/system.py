"""The devices that are configured, which every strategy made afterwards runs on.

IPUConfig.configure_ipu_system()     -> `configure`
"/device:IPU:k"                      -> the k-th of `System.groups`
"""

import copy
import logging
import re
from dataclasses import dataclass
from typing import Any

import jax

from millrace.errors import OptionError
from millrace.ipu import ahead
from millrace.ipu.config import plain_data
from millrace.ipu.config.devices import find_groups
from millrace.ipu.config.enums import DeviceConnectionType
from millrace.ipu.inert import inert

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
    """Returns what was configured; one device where nobody has."""
    return _configured[-1] if _configured else System(((jax.devices()[0],),))


def reset_system() -> None:
    """Forgets what was configured."""
    _configured.clear()
    ahead.end()


def configure(config: Any, reset: bool) -> None:
    """Puts a configuration in force, and says of which of its options nothing follows.

    Args:
        config: an `IPUConfig`, of which a copy is kept.
        reset: whether another configuration before gives up its compiled programs.
    """
    for path, option, value in plain_data.options(config):
        if option.advice and value != option.default:
            inert(f"IPUConfig.{path}", option.advice)
    groups = find_groups(config.auto_select_ipus, config.select_ipus)
    _put_in_force(System(groups, config.allow_recompute, copy.deepcopy(config)), reset)
    if config.device_connection.type is DeviceConnectionType.PRE_COMPILE:
        ahead.begin()
    else:
        ahead.end()


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
