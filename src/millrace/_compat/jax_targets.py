"""Private JAX: devices that are described and not present, with the real compilers of GPU and TPU.

`jax.experimental.topologies` makes devices that programs are compiled for and never run on. Plugins
without their hardware have to be started by hand. Checked on jax 0.10.2, where

    GPU   says no memory spaces, so that JAX takes the kind of memory off every sharding, without a
          word; no FLOPs, and no addresses of buffers
    TPU   says all but the addresses of buffers; refuses programs that its memory does not hold
"""

import functools
import importlib
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import jax
from jax._src import xla_bridge
from jax.experimental import topologies

_SKIP_CHECK = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
# Without these libtpu asks a server of Google's cloud what it is. Some machines have them set.
_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # by several processes, none of which has a TPU
}
# XLA would time kernels on the device to choose among them.
COMPILER_OPTIONS: Mapping[str, Mapping[str, str]] = {"gpu": {"xla_gpu_autotune_level": "0"}}


class CompilerMissingError(Exception):
    """The package of a compiler is not installed."""


@functools.cache  # devices of two topologies are never equal
def described_gpus(name: str, target_config: str, hosts: int, per_host: int) -> tuple[Any, ...]:
    """Returns GPUs that are described.

    Args:
        name: of the topology.
        target_config: XLA's description of one GPU, a `GpuTargetConfigProto` as text.
        hosts: machines, each with so many GPUs.
        per_host: GPUs of a machine.

    Raises:
        CompilerMissingError: without the compiler.
    """
    _start_cuda()
    topology = topologies.get_topology_desc(
        topology_name=name,
        platform="cuda",
        target_config=target_config,
        topology=f"1x{hosts}x{per_host}",
    )
    return tuple(topology.devices)


@functools.cache
def described_tpus(name: str, host: tuple[int, ...] | None) -> tuple[Any, ...]:
    """Returns the TPUs of a slice that is described.

    Args:
        name: such as `v5e:2x4`.
        host: the shape of the part of the slice that one host has; None for libtpu's.

    Raises:
        CompilerMissingError: without the compiler.
        ValueError: if there is no such slice.
    """
    if importlib.util.find_spec("libtpu") is None:
        raise CompilerMissingError
    if jax.devices()[0].platform != "tpu":  # which these variables would hide
        for variable, value in _TPU.items():
            os.environ.setdefault(variable, value)
    try:
        bounds = {} if host is None else {"chips_per_host_bounds": list(host)}
        return tuple(topologies.get_topology_desc(name, platform="tpu", **bounds).devices)
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("INVALID_ARGUMENT"):
            raise
        raise ValueError(str(error).removeprefix("INVALID_ARGUMENT: ")) from error


def is_described(device: jax.Device) -> bool:
    """Whether a device is of a target: programs are compiled for it, and none can run."""
    return type(device.client).__name__ == "CompileOnlyPyClient"


def belongs_here(device: jax.Device) -> bool:
    """Whether a device belongs to this process, as all that are described do."""
    return device.process_index == jax.process_index() or is_described(device)


def _start_cuda() -> None:
    jax.devices()  # starts the plugins of hardware that is there
    if "cuda" in xla_bridge._topology_factories:
        return
    names = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
    plugin = next(filter(None, map(_imported, names)), None)
    if plugin is None or _imported("nvidia.cuda_nvcc") is None:
        raise CompilerMissingError
    before = os.environ.get(_SKIP_CHECK)
    os.environ[_SKIP_CHECK] = "1"  # of the driver, which there is none of
    try:
        plugin.initialize()
    finally:
        if before is None:
            del os.environ[_SKIP_CHECK]
        else:
            os.environ[_SKIP_CHECK] = before
    if "cuda" not in xla_bridge._topology_factories:
        raise CompilerMissingError


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
