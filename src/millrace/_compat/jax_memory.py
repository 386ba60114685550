"""Private JAX: what an executable says of its memory. Checked on jax 0.10.2 and 0.12.0.1."""

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an executable takes up on each device, in bytes; 0 where its backend does not say."""

    peak_bytes: int = 0  # that a call needs, arguments and results included
    temporary_bytes: int = 0
    code_bytes: int = 0


def sizes_of(compiled: Any) -> Sizes:
    """Returns what an executable takes up. It is analyzed anew each time: 0.1 s for ResNet50."""
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


def requirement(compiled: Any) -> int:
    """Returns the bytes that a call needs on each device, arguments and results included."""
    return sizes_of(compiled).peak_bytes


def argument_bytes(compiled: Any) -> int:
    """Returns the bytes of the arguments that a program reads, on each device."""
    memory = _analysis(compiled)
    return 0 if memory is None else memory.argument_size_in_bytes


def flops(compiled: Any) -> float:
    """Returns the FLOPs of one call; the body of a loop of unknown length is counted once."""
    found = compiled.cost_analysis() or {}
    return float((found[0] if isinstance(found, list) else found).get("flops", 0.0))


def module_proto(compiled: Any) -> bytes:
    """Returns the scheduled program, an `HloModuleProto`."""
    return compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()


def buffers_proto(compiled: Any) -> bytes:
    """Returns where its buffers lie, a `BufferAssignmentProto`; empty where XLA does not say."""
    return getattr(_analysis(compiled), "serialized_buffer_assignment_proto", b"") or b""


def kept_arguments(compiled: Any) -> list[tuple[Any, ...]]:
    """Returns the paths of the arguments that a program reads, by number of its parameter.

    JAX drops arguments that are not read, and no public call says which.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(compiled.args_info)[0]]
    kept = sorted(getattr(compiled._executable, "_kept_var_idx", range(len(paths))))
    # The first entry tells positional from keyword arguments; programs have no keywords.
    return [paths[number][1:] for number in kept]


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether JAX raised `error` because a device has no memory left."""
    return isinstance(error, jax.errors.JaxRuntimeError) and (
        "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
    )


def memory_limit(device: Any) -> int | None:
    """Returns the bytes that JAX may use of a device's memory; None where it does not say."""
    statistics = device.memory_stats() if device.process_index == jax.process_index() else None
    return (statistics or {}).get("bytes_limit")


def _analysis(compiled: Any) -> Any:
    return compiled.memory_analysis() if hasattr(compiled, "memory_analysis") else None
