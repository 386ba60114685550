"""Private JAX: arrays, and what is looked for in them. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.

`uncommitted`          what a program returns is bound to its device; no public call undoes that.
`DeviceCopies`         transfers that cost less Python than `jax.device_put`.
`let_arrays_be_numpy`  programs written for TensorFlow ask a result for `.numpy()`; `jax.Array` is
                       abstract, and nothing public adds a method to what is behind it.
`non_finite`           the search for NaN and infinity that JAX was told to make.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.api_util import InternalFloatingPointError
from jax._src.array import ArrayImpl
from jax._src.core import ShapedArray
from jax._src.lib import xla_client  # type: ignore[attr-defined]

from millrace._compat.patch_table import ARRAY_NUMPY
from millrace._compat.patches import replace


def uncommitted(array: Any) -> Any:
    """Returns the array, on the device where it is, free to be moved by what uses it.

    What a compiled program returns is committed: an operation on two such arrays of different
    devices is an error, and no public call takes the commitment back.
    """
    if not array._committed:
        return array
    return ArrayImpl(array.aval, array.sharding, array._arrays, committed=False, _skip_checks=True)


class DeviceCopies:
    """Starts copies to one device, or to one device for each replica, with little Python.

    `jax.device_put` does the same and takes 22 us for an array, these take 3 from host memory and
    7 from another device: a task of a pipeline is to take 60 in all, and has two or three of them.
    """

    def __init__(self, sharding: Any, replicas: tuple[int, ...]):
        """Prepares copies.

        Args:
            sharding: of one device, or of the first axis over the devices of replicas.
            replicas: those whose device belongs to this process.
        """
        self._sharding = sharding
        self._list = sharding._internal_device_list
        devices = list(sharding._device_assignment)
        self._is_split = len(devices) > 1
        self._replicas = replicas
        self._devices = [devices[k] for k in replicas]
        self._avals: dict[Any, Any] = {}

    def from_host(self, array: np.ndarray) -> jax.Array:
        """Copies a host array, or takes its memory over where that is the device's."""
        key = (array.shape, array.dtype)
        aval = self._avals.get(key)
        if aval is None:
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            aval = self._avals[key] = ShapedArray(array.shape, dtype)
        parts = [array[k : k + 1] for k in self._replicas] if self._is_split else [array]
        return xla_client.batched_device_put(aval, self._sharding, parts, self._devices, True)

    def from_device(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """Copies arrays that are on other devices; they may still be being computed."""
        number = len(arrays)
        return xla_client.batched_copy_array_to_devices_with_sharding(
            arrays, [self._list] * number, [self._sharding] * number, [_COPY] * number
        )


_COPY = xla_client.ArrayCopySemantics.ALWAYS_COPY


def let_arrays_be_numpy() -> None:
    """Gives arrays a method `numpy`, unless they have one."""

    def wrapper(original: Any) -> Any:
        def numpy(array: jax.Array) -> np.ndarray:
            """Returns the array in host memory."""
            return np.asarray(array)

        del original
        return numpy

    if not hasattr(ARRAY_NUMPY.owner(), ARRAY_NUMPY.attribute):  # type: ignore[misc]
        replace(ARRAY_NUMPY, wrapper)


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
