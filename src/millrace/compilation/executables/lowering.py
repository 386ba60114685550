"""Traces a step and lowers it to StableHLO.

JAX and Keras keep the state of a trace by thread, so traces need no lock of the process, and none
is held while a user's function is traced. A model is an object that traces share, though. Keras's
`compute_loss_and_updates` leaves the losses of its layers on the model (`_losses_override`) until
it has added them up, and recomputation of activations exchanges `layer.activation` for the time of
a call. `precompile` traces the training and the validation step of one model in two threads:
without the lock, one would add up losses of the other's trace.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import keras

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.base.collector import fewer_collections
from millrace.compilation.executables.log import CompileLog, Reason
from millrace.compilation.executables.progress import progress
from millrace.compilation.executables.wanted import Code, Wanted
from millrace.programs.plan import Plan
from millrace.programs.recomputation.ordered import compiler_options as options_of_recomputation
from millrace.programs.recomputation.ordered import options_with_barriers
from millrace.programs.steps.ended_values import lower_program
from millrace.programs.steps.program import Program

_table = threading.Lock()  # held for a look-up only
_locks: "weakref.WeakKeyDictionary[keras.Model, threading.RLock]" = weakref.WeakKeyDictionary()


def tracing(model: keras.Model) -> "threading.RLock":
    """Returns the lock to hold while a step of `model` is traced. A trace may contain others."""
    with _table:
        return _locks.setdefault(model, threading.RLock())


@dataclass(frozen=True, slots=True)
class Lowering:
    """A program in StableHLO, with the reason for compiling it."""

    wanted: Wanted
    reason: Reason
    lowered: jax.stages.Lowered
    trace_seconds: float
    lower_seconds: float
    options: Mapping[str, Any]  # of XLA
    shares: bool  # whether its executable may serve equal programs


def lower(wanted: Wanted, log: CompileLog) -> Lowering:
    """Makes a program, traces and lowers it."""
    code, model = wanted.make(), wanted.model
    reason = log.reason(wanted)
    one_at_a_time = contextlib.nullcontext() if model is None else tracing(model)
    with (
        log.attempt(reason),
        one_at_a_time,
        fewer_collections(),
        progress("tracing", wanted.what),
    ):
        begin = time.perf_counter()
        traced = code.trace()
        between = time.perf_counter()
        lowered = lower_program(traced, model)
        end = time.perf_counter()
    return Lowering(
        wanted=wanted,
        reason=reason,
        lowered=lowered,
        trace_seconds=code.seconds + between - begin,
        lower_seconds=end - between,
        options=code.options,
        shares=code.shares(traced),
    )


def code_of(
    program: Program,
    plan: Plan,
    compiler_options: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
) -> Code:
    """Returns the code of a model's program, for the devices of its plan.

    Args:
        program: of the model.
        plan: of the program.
        compiler_options: of XLA, for this program alone.
        seconds: already spent on tracing the program's step.
    """
    group, options = plan.group, dict(compiler_options or {})
    if plan.recompute is not None:
        options = {**options_of_recomputation(group.platform, plan.recompute), **options}
    if program.keeps_barriers:
        options = {**options_with_barriers(group.platform), **options}

    def trace() -> jax.stages.Traced:
        arguments = jax.tree.map(
            lambda spec: jax.ShapeDtypeStruct(
                spec.shape, spec.dtype, sharding=spec.sharding or group.whole
            ),
            program.arguments,
        )
        # An error about a non-finite value is reported with the state before it, which must
        # survive.
        donated = () if looks_for_non_finite() else program.donated
        # With no arguments to follow, results would lie on the default device.
        results = program.results if program.arguments else program.results or group.whole
        jitted = jax.jit(program.function, donate_argnums=donated, out_shardings=results)
        return jitted.trace(*arguments)

    # Tapped values are in trees with queues.
    return Code(trace, lambda _: not plan.tapped, options, seconds)
