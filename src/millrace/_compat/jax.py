"""Private JAX. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge
from jax._src.api_util import InternalFloatingPointError
from jax._src.array import ArrayImpl
from jax._src.core import ShapedArray
from jax._src.lib import xla_client  # type: ignore[attr-defined]


def backends_are_initialized() -> bool:
    """Whether JAX has started its devices, after which their number is fixed.

    No public call tells without starting them.
    """
    return xla_bridge.backends_are_initialized()


def uncommitted(array: Any) -> Any:
    """Returns the array, on the device where it is, free to be moved by what uses it.

    What a compiled program returns is committed: an operation on two such arrays of different
    devices is an error, and no public call takes the commitment back.
    """
    if not array._committed:
        return array
    return ArrayImpl(array.aval, array.sharding, array._arrays, committed=False, _skip_checks=True)


class DeviceCopies:
    """Starts copies to one device with as little Python as there is.

    `jax.device_put` does the same and takes 22 us for an array, these take 3 from host memory and
    7 from another device: a task of a pipeline is to take 60 in all, and has two or three of them.
    """

    def __init__(self, device: jax.Device):
        self._device = device
        self._sharding = jax.sharding.SingleDeviceSharding(device)
        self._devices = self._sharding._internal_device_list
        self._avals: dict[Any, Any] = {}

    def from_host(self, array: np.ndarray) -> jax.Array:
        """Copies a host array, or takes its memory over where that is the device's."""
        key = (array.shape, array.dtype)
        aval = self._avals.get(key)
        if aval is None:
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            aval = self._avals[key] = ShapedArray(array.shape, dtype)
        return xla_client.batched_device_put(aval, self._sharding, [array], [self._device], True)

    def from_device(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """Copies arrays that are on another device; they may still be being computed."""
        number = len(arrays)
        return xla_client.batched_copy_array_to_devices_with_sharding(
            arrays, [self._devices] * number, [self._sharding] * number, [_COPY] * number
        )


_COPY = xla_client.ArrayCopySemantics.ALWAYS_COPY


def looks_for_non_finite() -> bool:
    """Whether JAX checks what every executable returns for NaN or infinity."""
    config: Any = jax.config  # which declares its options when it runs
    return bool(config.jax_debug_nans or config.jax_debug_infs)


def non_finite(array: jax.Array) -> str | None:
    """Returns "nan" or "inf" if an array has one and JAX was told to look for it."""
    config: Any = jax.config
    if config.jax_debug_nans and bool(jnp.isnan(array).any()):
        return "nan"
    if config.jax_debug_infs and bool(jnp.isinf(array).any()):
        return "inf"
    return None


def is_non_finite_error(error: BaseException) -> bool:
    """Whether JAX raised `error` for a NaN or an infinity that an executable returned.

    `jax.jit` catches it and runs the function again, operation by operation; executables that
    were compiled ahead of time let this private class through.
    """
    return isinstance(error, InternalFloatingPointError | FloatingPointError)
