"""Private JAX. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1."""

import enum
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import clusters, distributed, xla_bridge
from jax._src.api_util import InternalFloatingPointError
from jax._src.array import ArrayImpl
from jax._src.config import config_ext, trace_context
from jax._src.core import AxisEnv, ShapedArray, Tracer, get_opaque_trace_state, trace_state_clean
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


def process_index() -> int:
    """The number of this process among those that `jax.distributed` has connected.

    `jax.process_index()` asks the devices, and so starts them.
    """
    return distributed.global_state.process_id


def process_count() -> int:
    """How many processes `jax.distributed` has connected; 1 without it."""
    return distributed.global_state.num_processes


def key_value_store() -> Any:
    """The store that `jax.distributed` has for all processes; None without it.

    Its client has no public name. Of its methods, `key_value_set`, `key_value_dir_get`,
    `blocking_key_value_get` and `key_value_delete` are the same in all versions checked.
    """
    return distributed.global_state.client


def recognise_cluster(
    coordinator_address: str | None,
    num_processes: int | None,
    process_id: int | None,
    local_device_ids: Any,
    timeout: int,
) -> tuple[str | None, int | None, int | None, Any]:
    """Fills in what Slurm, MPI, Kubernetes and other clusters say of this process.

    `jax.distributed.initialize` does this, too, and then connects at once; the address must be
    known before, to meet there.
    """
    address = coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    return clusters.ClusterEnv.auto_detect_unset_distributed_params(
        address, num_processes, process_id, local_device_ids, None, timeout
    )


def trace_state() -> Any:
    """Returns what is equal for two moments within one trace, and differs between traces.

    A value of an inner trace cannot be used in an outer one, and no public call says which of
    them is current.
    """
    return get_opaque_trace_state()


def is_traced(value: Any) -> bool:
    """Whether a value is one of a trace, and has no numbers yet.

    `jax.core.Tracer` is public, and type checkers do not see the module.
    """
    return isinstance(value, Tracer)


def is_tracing() -> bool:
    """Whether operations of this thread become part of a program, or are differentiated.

    No public call tells: a value made within `jax.grad` looks like any other.
    """
    return not trace_state_clean()


# What `jax.jit` notes on a function that it returns, with a path of this machine; whatever copies
# the attributes of that function has them, too.
JIT_NOTES = ("_fun", "_jit_info")


def jax_options() -> dict[str, str]:
    """Returns the options of JAX that tracing and compiling depend on, as text.

    The names are those by which JAX tells its own traces apart, contexts included; 0.10.0 has no
    list of them, so there it is a list of ours.
    """
    names = getattr(config_ext, "trace_context_names", None)
    if names is None:
        found = {name: getattr(jax.config, name, None) for name in _TRACE_OPTIONS}
    else:
        found = dict(zip(names(), trace_context(), strict=True))
    found.update({name: getattr(jax.config, name, None) for name in _COMPILE_OPTIONS})
    return {name: _option_text(value) for name, value in found.items()}


_TRACE_OPTIONS = (
    "jax_allow_f16_reductions",
    "jax_custom_vjp3",
    "jax_default_device",
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_embedded_constants_max_bytes",
    "jax_enable_x64",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_random_seed_offset",
    "jax_softmax_custom_jvp",
    "jax_threefry_gpu_kernel_lowering",
    "jax_threefry_partitionable",
    "jax_use_direct_linearize",
    "jax_use_shardy_partitioner",
    "jax_use_simplified_jaxpr_constants",
)
_COMPILE_OPTIONS = (
    "jax_debug_infs",
    "jax_debug_nans",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)


def _option_text(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, AxisEnv):  # the axes that a trace is inside of
        value = dict(value.axis_sizes.items())
    return re.sub(r"( object)? at 0x[0-9a-f]+", "", str(value))
