"""Moving arrays to the device of a stage. Nothing waits, and nothing goes through host memory."""

from collections.abc import Sequence
from typing import Any

import jax

from millrace._compat.jax import DeviceCopies


def on_device(value: Any, device: jax.Device) -> Any:
    """Returns an array on `device`: itself if it is there, else a copy that has been started."""
    return value if value.devices() == {device} else jax.device_put(value, device)


class Transfer:
    """Starts transfers to one device."""

    def __init__(self, device: jax.Device):
        self.device = device
        self._copies = DeviceCopies(device)

    def batch(self, leaves: Sequence[Any]) -> list[Any]:
        """Moves leaves of a batch, which are in host memory."""
        return [self._copies.from_host(leaf) for leaf in leaves]

    def values(self, arrays: list[Any]) -> list[Any]:
        """Moves what another stage made."""
        return self._copies.from_device(arrays)
