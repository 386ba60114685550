"""Moving arrays between device groups."""

from typing import Any

import jax


def transfer(arrays: list[Any], device: jax.Device) -> list[Any]:
    """Starts moving arrays to `device`, without a copy in host memory, and returns at once."""
    return jax.device_put(arrays, device)
