"""Private JAX: the facts that executables state, and executables for other devices.

Sizes, FLOPs and XLA's own descriptions are read off an executable.

`jax.experimental.serialize_executable` writes an executable with the numbers of its devices, and
reads it for the same ones. XLA's options, which name the devices too, can be replaced when it is
read, but by no public call. Checked on jax 0.10.0, 0.10.2 and 0.12.0.1.
"""

import io
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import compilation_cache, compiler
from jax.experimental import serialize_executable
from jax.tree_util import PyTreeDef

from millrace._compat.jax_memory import is_on_host


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory of an executable on each device, in bytes; 0 where its backend does not say."""

    peak_bytes: int = 0  # of a call, arguments and results included
    temporary_bytes: int = 0
    code_bytes: int = 0


def sizes_of(compiled: object) -> Sizes:
    """Returns the memory of an executable, analyzed in each call: 0.1 s for ResNet50.

    Args:
        compiled: a `jax.stages.Compiled`; any other object has no sizes.
    """
    memory = _analysis(compiled)
    if memory is None:
        return Sizes()
    # Not `peak_memory_in_bytes`: on CPU that leaves out temporaries.
    peak = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
    code = getattr(memory, "generated_code_size_in_bytes", 0) or 0
    return Sizes(peak, memory.temp_size_in_bytes or 0, code)


def requirement(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes that a call needs on each device, arguments and results included."""
    return sizes_of(compiled).peak_bytes


def argument_bytes(compiled: jax.stages.Compiled) -> int:
    """Returns the bytes of the arguments that a program reads, on each device."""
    memory = _analysis(compiled)
    return 0 if memory is None else memory.argument_size_in_bytes


def argument_sizes(compiled: jax.stages.Compiled) -> list[int]:
    """Returns the bytes of each argument that a program reads, on each device, as its shape says.

    An argument in host memory has none.
    """
    return [0 if is_on_host(sharding) else size for size, sharding in _arguments(compiled)]


def _arguments(compiled: jax.stages.Compiled) -> Iterator[tuple[int, Any]]:
    """Yields the bytes on a device of each argument that a program reads, and its sharding."""
    shardings = jax.tree.leaves(compiled.input_shardings, is_leaf=lambda each: each is None)
    leaves = jax.tree.leaves(compiled.args_info)
    for number in sorted(getattr(compiled._executable, "_kept_var_idx", range(len(leaves)))):
        value, sharding = leaves[number], shardings[number]
        shape = value.shape if sharding is None else sharding.shard_shape(value.shape)
        yield math.prod(shape) * value.dtype.itemsize, sharding


def module_proto(compiled: jax.stages.Compiled) -> bytes:
    """Returns the scheduled program, an `HloModuleProto`."""
    executable: Any = compiled.runtime_executable()
    return executable.hlo_modules()[0].as_serialized_hlo_module_proto()


def buffers_proto(compiled: jax.stages.Compiled) -> bytes:
    """Returns where its buffers lie, a `BufferAssignmentProto`; empty where XLA does not say."""
    return getattr(_analysis(compiled), "serialized_buffer_assignment_proto", b"") or b""


def kept_arguments(compiled: jax.stages.Compiled) -> list[tuple[Any, ...]]:
    """Returns the paths of the arguments that a program reads, by number of its parameter.

    JAX drops arguments that are not read, and no public call says which.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(compiled.args_info)[0]]
    executable: Any = compiled._executable
    kept = sorted(getattr(executable, "_kept_var_idx", range(len(paths))))
    # The first entry tells positional from keyword arguments; programs have no keywords.
    return [paths[number][1:] for number in kept]


def devices_of(compiled: jax.stages.Compiled) -> tuple[jax.Device, ...]:
    """Returns the devices of an executable, in order; none where JAX does not say."""
    executable: Any = compiled.runtime_executable()
    if hasattr(executable, "local_devices"):
        return tuple(executable.local_devices())
    unloaded: Any = getattr(compiled._executable, "_unloaded_executable", None)  # of a target
    return tuple(getattr(unloaded, "device_list", ()))


def result_paths(compiled: jax.stages.Compiled) -> list[tuple[Any, ...]]:
    """Returns the paths of the results of a program, in order."""
    numbers = compiled.out_tree.unflatten(range(compiled.out_tree.num_leaves))
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(numbers)[0]]


def arguments_of(lowered: jax.stages.Lowered) -> Hashable:
    """Returns shapes and dtypes of a program's arguments, and the numbers of those that reach XLA.

    JAX leaves out unused arguments, so programs that use different ones can have the same text.

    Raises:
        KeyError: if JAX does not say which they are.
    """
    kept = lowered._lowering.compile_args["kept_var_idx"]  # type: ignore[attr-defined]
    leaves = jax.tree.leaves(lowered.args_info)
    return tuple(sorted(kept)), tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _analysis(compiled: Any) -> Any:  # a class of jaxlib
    return compiled.memory_analysis() if hasattr(compiled, "memory_analysis") else None


class _Reader(serialize_executable._JaxPjrtUnpickler):  # type: ignore[misc]
    def __init__(self, data: bytes, numbers: Sequence[int], devices: Sequence[jax.Device]):
        super().__init__(io.BytesIO(data), devices[0].client, tuple(devices))
        # The numbers may be of another process: of the one that compiled it.
        self.devices_by_id = dict(zip(numbers, devices, strict=True))
        self._options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=len(devices),
            device_assignment=np.array([[device.id for device in devices]]),
        )
        self._options.executable_build_options.use_spmd_partitioning = len(devices) > 1

    def persistent_load(self, pid: tuple[Any, ...]) -> object:
        if pid[0] != "exec":
            return super().persistent_load(pid)
        return self.backend.deserialize_executable(pid[1], self.execution_devices, self._options)


class _Writer(serialize_executable._JaxPjrtPickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, code: bytes):
        super().__init__(file)
        self._code = code

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        # Classes of jaxlib, which lie in another module in each version.
        if type(obj).__name__ in ("LoadedExecutable", "Executable"):
            return "exec", self._code
        return super().persistent_id(obj)


def as_bytes(
    compiled: jax.stages.Compiled, code: bytes | None = None
) -> tuple[bytes, PyTreeDef, PyTreeDef]:
    """Returns an executable as bytes, and the trees of its arguments and results.

    Args:
        compiled: the executable.
        code: the bytes that XLA wrote of an executable that was read, not compiled. XLA for CPU
            would write only a part of such a one, without an error, and could not read that.

    Raises:
        ValueError: if this kind of executable cannot be written.
        NotImplementedError: likewise.
    """
    if code is None:
        return serialize_executable.serialize(compiled)
    unloaded = getattr(compiled._executable, "_unloaded_executable", None)
    if unloaded is None:
        raise ValueError("this kind of executable cannot be written")
    if compiled._params.const_args:
        raise NotImplementedError("it has constants beside its code")
    arguments, in_tree = jax.tree.flatten(compiled.args_info)
    file = io.BytesIO()
    _Writer(file, code).dump((unloaded, arguments, compiled._no_kwargs))
    return file.getvalue(), in_tree, compiled.out_tree


def code_of_entry(entry: bytes) -> bytes:
    """Returns the bytes that XLA wrote of an executable, from an entry of JAX's cache."""
    written = compilation_cache.decompress_executable(entry)
    return compilation_cache.extract_executable_and_time(written)[0]


def from_bytes(
    data: bytes,
    in_tree: PyTreeDef,
    out_tree: PyTreeDef,
    numbers: Sequence[int],
    devices: Sequence[jax.Device],
) -> jax.stages.Compiled:
    """Returns an executable that was written, for devices of this process.

    Args:
        data: as `as_bytes` returns it. It can run any code, so its writer must be trusted.
        in_tree: of its arguments.
        out_tree: of its results.
        numbers: the ids of the devices that it was compiled for.
        devices: on which it will run, one for each of these ids.
    """
    unloaded, arguments, no_kwargs = _Reader(data, numbers, devices).load()
    return jax.stages.Compiled(
        unloaded.load(), [], in_tree.unflatten(arguments), out_tree, no_kwargs=no_kwargs
    )
