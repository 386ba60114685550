"""Lowering and compiling one program, with a record of what it cost."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import rich.console

from millrace._compat.jax import looks_for_non_finite, non_finite
from millrace._compat.jax_memory import requirement
from millrace.plan import Plan
from millrace.programs.hold_back import compiler_options as options_of_recomputation
from millrace.programs.program import Program
from millrace.records.compilation import CompileRecord

logger = logging.getLogger("millrace")

# Called with positional arguments as the program specifies them.
Executable = Callable[..., Any]

SLOW_SECONDS = 2.0  # a compilation longer than this says that it is going on


def compile_program(
    program: Program,
    plan: Plan,
    model_name: str,
    log: list[CompileRecord],
    trace_seconds: float = 0.0,
    compiler_options: Mapping[str, Any] | None = None,
) -> Executable:
    """Compiles `program` for the plan's devices and adds a record to `log`.

    What takes longer than two seconds says so: on a terminal, and to the `millrace` logger at
    level INFO.
    `trace_seconds` are those that tracing the program's step has taken already. XLA gets
    `compiler_options` for this program alone.
    """
    arguments = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(
            spec.shape, spec.dtype, sharding=spec.sharding or plan.group.whole
        ),
        program.arguments,
    )
    what = f"{program.name} of {model_name!r} for batches of {plan.batch}"
    with _progress(what):
        begin = time.perf_counter()
        # What JAX finds non-finite is reported with the state from before, so that must survive.
        donated = () if looks_for_non_finite() else program.donated
        # With no arguments to follow, results would lie on the default device.
        results = program.results if program.arguments else program.results or plan.group.whole
        jitted = jax.jit(program.function, donate_argnums=donated, out_shardings=results)
        lowered = jitted.lower(*arguments)
        traced = time.perf_counter()
        options = dict(compiler_options or {})
        if plan.recompute is not None:
            options = {**options_of_recomputation(plan.group.platform), **options}
        compiled = lowered.compile(options or None)
        end = time.perf_counter()
    memory = compiled.memory_analysis()
    log.append(
        CompileRecord(
            model=model_name,
            program=program.name,
            batch=str(plan.batch),
            capacity=plan.capacity,
            unrolled=program.unrolled,
            trace_seconds=trace_seconds + traced - begin,
            compile_seconds=end - traced,
            temporary_bytes=getattr(memory, "temp_size_in_bytes", 0) or 0,
            peak_bytes=requirement(compiled),
        )
    )
    return checked(compiled) if looks_for_non_finite() else compiled


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
    """Returns the `jax.stages.Compiled` of an executable, also of one that is checked."""
    return getattr(executable, "__wrapped__", executable)


def _announce(what: str) -> None:
    logger.info("compiling %s ...", what)
    console = rich.console.Console(stderr=True)
    if console.is_terminal:  # someone is waiting; a log file has the line above
        console.print(f"compiling {what} ...", style="dim", highlight=False, markup=False)


@contextlib.contextmanager
def _progress(what: str) -> Iterator[None]:
    timer = threading.Timer(SLOW_SECONDS, _announce, (what,))
    timer.daemon = True
    timer.start()
    begin = time.perf_counter()
    try:
        yield
    finally:
        timer.cancel()
        logger.debug("compiled %s in %.2f s", what, time.perf_counter() - begin)
