"""Lowering and compiling programs, with a record of what each cost and why it was made.

    request -> cause -> lowered -> equal to one that is here?  shared
                                   on disk?                    read
                                   neither                     compiled, if that is allowed

Tracing and lowering are Python and go one after another; XLA compiles in threads beside them.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp

from millrace._compat.jax_arrays import looks_for_non_finite, non_finite
from millrace.compiling.compile import make
from millrace.compiling.log import CompileLog
from millrace.compiling.lowering import Lowering, Request, lower
from millrace.compiling.record import record_of
from millrace.interrupts import raise_if_interrupted

# Called with positional arguments as the program specifies them.
Executable = Callable[..., Any]

_THREADS = 16


def compile_program(request: Request, log: CompileLog) -> Executable:
    """Compiles a program for the plan's devices and adds a record to `log`.

    What takes longer than a second says so: on a terminal, and to the `millrace` logger at level
    INFO.

    Raises:
        RecompilationError: if it is a recompilation, and the log refuses those.
    """
    raise_if_interrupted()
    return finish(lower(request, log), log)


def compile_programs(requests: Iterable[Request], log: CompileLog) -> list[Executable]:
    """Compiles programs at the same time, and returns their executables in order.

    Raises:
        RecompilationError: as `compile_program`.
    """
    # More threads than cores: some wait for others that compile an equal program.
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="millrace-compile") as pool:
        running = []
        for request in requests:
            raise_if_interrupted()
            running.append(pool.submit(finish, lower(request, log), log))
        return [each.result() for each in running]


def finish(lowering: Lowering, log: CompileLog) -> Executable:
    """Makes the executable of a program that is lowered, and adds a record to `log`.

    Raises:
        RecompilationError: as `compile_program`.
    """
    began = time.time()
    with log.attempt(lowering.group, lowering.again):
        making = make(lowering, log)
    log.add(
        record_of(
            lowering.key,
            making.origin,
            making.cause,
            lowering.again,
            making.sizes,
            began=began,
            compile_seconds=making.seconds,
            trace_seconds=lowering.trace_seconds,
            lower_seconds=lowering.lower_seconds,
            batch=lowering.batch,
            capacity=lowering.capacity,
            unrolled=lowering.unrolled,
        )
    )
    executable = checked(making.compiled) if looks_for_non_finite() else making.compiled
    renames = new_names(making.layers, lowering.layers)
    return renamed(executable, renames) if renames else executable


def new_names(compiled_for: tuple[str, ...], layers: tuple[str, ...]) -> dict[str, str]:
    """Returns what layers are called that an executable knows by the names of an equal model."""
    if len(compiled_for) != len(layers):
        return {}
    pairs = set(zip(compiled_for, layers, strict=True))
    known = [old for old, _ in pairs]
    return {old: new for old, new in pairs if old != new and known.count(old) == 1}


def renamed(executable: Executable, renames: Mapping[str, str]) -> Executable:
    """Returns an executable that tells which layers its operations belong to; see `renames_of`."""

    def run(*arguments: Any) -> Any:
        return executable(*arguments)

    run.__wrapped__ = executable  # type: ignore[attr-defined]
    run.renames = renames  # type: ignore[attr-defined]
    return run


def renames_of(executable: Executable) -> Mapping[str, str]:
    """Returns the names of layers by those that the executable has in their place."""
    return getattr(executable, "renames", {})


def checked(executable: Executable) -> Executable:
    """Returns an executable whose results are looked through for what JAX was told to look for.

    JAX looks through those of an executable's first call itself, and of later ones only where its
    fast way of calling does not apply.
    """

    def run(*arguments: Any) -> Any:
        results = executable(*arguments)
        for leaf in jax.tree.leaves(results):
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and (found := non_finite(leaf)):
                raise FloatingPointError(found)
        return results

    run.__wrapped__ = executable  # type: ignore[attr-defined]
    return run


def compiled_of(executable: Executable) -> Any:
    """Returns the `jax.stages.Compiled` of an executable, whatever is around it."""
    while not isinstance(executable, jax.stages.Compiled) and hasattr(executable, "__wrapped__"):
        executable = executable.__wrapped__  # type: ignore[attr-defined]
    return executable
