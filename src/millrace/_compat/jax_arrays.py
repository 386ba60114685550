"""Private JAX: arrays, and the search for NaN in them. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.

`uncommitted`          results of a program are bound to their device; no public call undoes that.
`DeviceCopies`         transfers that cost less Python than `jax.device_put`.
`are_ready`            whether arrays are computed; the abstract `jax.Array` does not declare it.
`non_finite`           the search for NaN and infinity that JAX's options ask for.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.api_util import InternalFloatingPointError
from jax._src.array import ArrayImpl
from jax._src.core import ShapedArray
from jax._src.lib import xla_client  # type: ignore[attr-defined]


def uncommitted(array: jax.Array) -> jax.Array:
    """Returns the array, on its device, free to be moved by the operations that use it.

    Results of a compiled program are committed: an operation on two such arrays of different
    devices is an error, and no public call takes the commitment back.
    """
    private: Any = array
    if not private._committed:
        return array
    arrays = private._arrays
    return ArrayImpl(private.aval, array.sharding, arrays, committed=False, _skip_checks=True)


def free_unless_shared(arrays: Iterable[jax.Array], others: Iterable[jax.Array]) -> None:
    """Deletes arrays that have no memory in common with others.

    A copy on several devices has the memory of the original on one of them, and an array can be
    there twice, as with `uncommitted`.
    """
    arrays = list(arrays)
    places = set().union(*map(_places, arrays))
    near = [array for array in others if not places.isdisjoint(_places(array))]
    try:
        kept = set().union(*map(_pointers, near))
        free = [array for array in arrays if kept.isdisjoint(_pointers(array))]
    except jax.errors.JaxRuntimeError:  # devices that do not say where their memory is
        return
    for array in free:
        array.delete()


def _pointers(array: jax.Array) -> set[int]:
    return {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}


def _places(array: jax.Array) -> set[tuple[jax.Device, str | None]]:
    return {(device, array.sharding.memory_kind) for device in array.sharding.addressable_devices}


def are_ready(arrays: Iterable[jax.Array]) -> bool:
    """Whether all of some arrays are there. Does not wait."""
    private: Any = arrays
    return all(array.is_ready() for array in private)


class DeviceCopies:
    """Starts copies to one device, or to one device for each replica, with little Python.

    `jax.device_put` takes 22 us for an array; these take 3 from host memory and 7 from another
    device. A task of a pipeline, of 60 us in all, has two or three copies.
    """

    def __init__(self, sharding: jax.sharding.Sharding, replicas: tuple[int, ...]):
        """Prepares copies.

        Args:
            sharding: of one device, or of the first axis over the devices of replicas.
            replicas: those whose device belongs to this process.
        """
        private: Any = sharding
        self._sharding = sharding
        self._list = private._internal_device_list
        devices = list(private._device_assignment)
        self._is_split = len(devices) > 1
        self._replicas = replicas
        self._devices = [devices[k] for k in replicas]
        self._avals: dict[tuple[tuple[int, ...], np.dtype], ShapedArray] = {}

    def from_host(self, array: np.ndarray) -> jax.Array:
        """Copies a host array; on a CPU the copy may take over its memory."""
        key = (array.shape, array.dtype)
        aval = self._avals.get(key)
        if aval is None:
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            aval = self._avals[key] = ShapedArray(array.shape, dtype)
        parts = [array[k : k + 1] for k in self._replicas] if self._is_split else [array]
        return xla_client.batched_device_put(aval, self._sharding, parts, self._devices, True)

    def from_device(self, arrays: list[jax.Array]) -> list[jax.Array]:
        """Copies arrays from other devices, also while they are being computed."""
        number = len(arrays)
        return xla_client.batched_copy_array_to_devices_with_sharding(
            arrays, [self._list] * number, [self._sharding] * number, [_COPY] * number
        )


_COPY = xla_client.ArrayCopySemantics.ALWAYS_COPY


def looks_for_non_finite() -> bool:
    """Whether JAX checks the results of every executable for NaN or infinity."""
    config: Any = jax.config  # which declares its options when it runs
    return bool(config.jax_debug_nans or config.jax_debug_infs)


def non_finite(array: jax.Array) -> str | None:
    """Returns "nan" or "inf" if an array has one and JAX's options ask for the check."""
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
