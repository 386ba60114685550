"""The executable of a lowered program, with a record of the cause and the costs.

lowered -> equal to an earlier one?    shared
on disk?                    read
neither                     compiled, if that is allowed
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from millrace._compat.jax_arrays import looks_for_non_finite, non_finite
from millrace.compilation.executables.compile import CompileResult, share_or_compile
from millrace.compilation.executables.log import CompileLog, record_of
from millrace.compilation.executables.lowering import Lowering
from millrace.compilation.executables.trials import NewExecutable
from millrace.compilation.executables.wanted import Wanted

# Called with positional arguments as the program specifies them.
Executable = Callable[..., Any]


def finish(lowering: Lowering, log: CompileLog) -> Executable:
    """Makes the executable of a program that is lowered, and adds a record to `log`.

    Raises:
        RecompilationError: if it is a recompilation, and the log refuses those.
    """
    trace_seconds, lower_seconds = lowering.trace_seconds, lowering.lower_seconds
    began = time.time() - trace_seconds - lower_seconds
    with log.attempt(lowering.reason):
        result = share_or_compile(lowering, log)
    is_again = lowering.reason.is_again
    return logged(lowering.wanted, result, is_again, log, began, trace_seconds, lower_seconds)


def logged(
    wanted: Wanted,
    result: CompileResult,
    is_again: bool,
    log: CompileLog,
    began: float,
    trace_seconds: float = 0.0,
    lower_seconds: float = 0.0,
) -> Executable:
    """Adds the record of an executable to `log`, and returns the executable as it is called."""
    record = record_of(
        wanted,
        result.origin,
        result.cause,
        is_again,
        result.sizes,
        began=began,
        compile_seconds=result.seconds,
        trace_seconds=trace_seconds,
        lower_seconds=lower_seconds,
    )
    log.add(record)
    executable = checked(result.compiled) if looks_for_non_finite() else result.compiled
    renames = new_names(result.layers, wanted.layers)
    executable = renamed(executable, renames) if renames else executable
    log.observe(NewExecutable(record, executable, wanted.model, wanted.plan, wanted.source))
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
