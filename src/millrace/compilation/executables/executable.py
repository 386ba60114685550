"""Lowering and compiling programs, with a record of the cause and the costs of each.

    request -> cause -> lowered -> equal to an earlier one?    shared
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
from millrace.base.interrupts import raise_if_interrupted
from millrace.compilation.executables.compile import share_or_compile
from millrace.compilation.executables.log import CompileLog, NewExecutable, record_of
from millrace.compilation.executables.lowering import Lowering, Request, lower

# Called with positional arguments as the program specifies them.
Executable = Callable[..., Any]

_THREADS = 16


def compile_program(request: Request, log: CompileLog) -> Executable:
    """Compiles a program for the plan's devices and adds a record to `log`.

    A step that takes longer than a second is announced: on a terminal, and to the `millrace` logger
    at level INFO.

    Raises:
        RecompilationError: if it is a recompilation, and the log refuses those.
    """
    raise_if_interrupted()
    lowering = lower(request, log)
    raise_if_interrupted()  # XLA cannot be
    return finish(lowering, log)


def compile_programs(requests: Iterable[Request], log: CompileLog) -> list[Executable]:
    """Compiles programs at the same time, and returns their executables in order.

    Raises:
        RecompilationError: as `compile_program`.
    """
    # More threads than cores: some wait for another thread that compiles an equal program.
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
    began = time.time() - lowering.trace_seconds - lowering.lower_seconds
    with log.attempt(lowering.group, lowering.again):
        result = share_or_compile(lowering, log)
    record = record_of(
        lowering.key,
        result.origin,
        result.cause,
        lowering.again,
        result.sizes,
        began=began,
        compile_seconds=result.seconds,
        trace_seconds=lowering.trace_seconds,
        lower_seconds=lowering.lower_seconds,
        batch=lowering.batch,
        capacity=lowering.capacity,
        unrolled=lowering.unrolled,
    )
    log.add(record)
    executable = checked(result.compiled) if looks_for_non_finite() else result.compiled
    renames = new_names(result.layers, lowering.layers)
    executable = renamed(executable, renames) if renames else executable
    log.observe(NewExecutable(record, executable, lowering.model, lowering.plan, lowering.source))
    return executable


def new_names(compiled_for: tuple[str, ...], layers: tuple[str, ...]) -> dict[str, str]:
    """Returns the names of layers by those of the equal model that an executable was made for."""
    if len(compiled_for) != len(layers):
        return {}
    pairs = set(zip(compiled_for, layers, strict=True))
    olds = [old for old, _ in pairs]
    return {old: new for old, new in pairs if old != new and olds.count(old) == 1}


def renamed(executable: Executable, renames: Mapping[str, str]) -> Executable:
    """Returns an executable with the names of its layers; see `renames_of`."""

    def run(*arguments: object) -> object:
        return executable(*arguments)

    run.__wrapped__ = executable  # type: ignore[attr-defined]
    run.renames = renames  # type: ignore[attr-defined]
    return run


def renames_of(executable: Executable) -> Mapping[str, str]:
    """Returns the names of layers by those in the executable; empty where they are the same."""
    return getattr(executable, "renames", {})


def checked(executable: Executable) -> Executable:
    """Returns an executable that checks its results for NaN or infinity, as JAX's options ask.

    JAX itself checks the results of an executable's first call, and later ones only where its fast
    path does not apply.
    """

    def run(*arguments: object) -> object:
        results = executable(*arguments)
        for leaf in jax.tree.leaves(results):
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and (found := non_finite(leaf)):
                raise FloatingPointError(found)
        return results

    run.__wrapped__ = executable  # type: ignore[attr-defined]
    return run


def compiled_of(executable: Executable) -> Any:
    """Returns the `jax.stages.Compiled` inside an executable and its wrappers."""
    while not isinstance(executable, jax.stages.Compiled) and hasattr(executable, "__wrapped__"):
        executable = executable.__wrapped__  # type: ignore[attr-defined]
    return executable
