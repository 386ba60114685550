"""Moving arrays to the devices of a stage. Nothing waits, and nothing goes through host memory."""

from collections.abc import Sequence
from typing import Any

import jax

from millrace._compat.jax import DeviceCopies
from millrace.devices import DeviceGroup


def on_device(value: Any, device: jax.Device) -> Any:
    """Returns an array on `device`: itself if it is there, else a copy that has been started."""
    return value if value.devices() == {device} else jax.device_put(value, device)


class Transfer:
    """Starts transfers to the devices of one group; with replicas, of arrays `[replicas, ...]`."""

    def __init__(self, group: DeviceGroup):
        self.group = group
        self._copies = DeviceCopies(group.split(0), group.local)

    def batch(self, leaves: Sequence[Any]) -> list[Any]:
        """Moves leaves of a batch, which are in host memory."""
        return [self._copies.from_host(leaf) for leaf in leaves]

    def values(self, arrays: list[Any]) -> list[Any]:
        """Moves what another stage made."""
        return self._copies.from_device(arrays)
