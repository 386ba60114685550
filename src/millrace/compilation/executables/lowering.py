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
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import keras

from millrace._compat.jax_arrays import looks_for_non_finite
from millrace.base.collector import fewer_collections
from millrace.base.records.compilation import Cause, ProgramKey
from millrace.compilation.executables.log import CompileLog
from millrace.compilation.executables.progress import progress
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


MODEL_OBJECT = "model object"  # the name of a field of identity


@dataclass(frozen=True, slots=True)
class Request:
    """A request to compile a program."""

    program: Program
    plan: Plan
    key: ProgramKey
    trace_seconds: float = 0.0  # already spent on tracing the program's step
    compiler_options: Mapping[str, Any] | None = None  # of XLA, for this program alone
    layers: tuple[str, ...] = ()  # names of the model's layers, in order
    model: keras.Model | None = None  # called by the program, if any

    @property
    def what(self) -> str:
        """The program in words."""
        return f"{self.program.name} of {self.key.model!r} for batches of {self.plan.batch}"


@dataclass(frozen=True, slots=True)
class Lowering:
    """A program in StableHLO, and the facts about it."""

    what: str  # in words
    key: ProgramKey
    lowered: jax.stages.Lowered
    devices: tuple[jax.Device, ...]
    cause: Cause  # as far as it follows from the key
    again: bool  # whether it is a recompilation
    trace_seconds: float
    lower_seconds: float
    group: Hashable = None  # see group_of
    batch: str = ""
    capacity: int = 0
    unrolled: int | None = None
    options: Mapping[str, Any] | None = None  # of XLA
    layers: tuple[str, ...] = ()
    shares: bool = True  # whether its executable may serve equal programs
    model: keras.Model | None = None
    plan: Plan | None = None
    source: object = None  # as in `Program`


def group_of(key: ProgramKey, plan: Plan, unrolled: int | None) -> Hashable:
    """Returns the group of a program: the second program of a group is a recompilation."""
    # Both forms of a loop, and the attempts of a choice by memory, are groups by themselves.
    recompute = plan.recompute
    choice = None
    if recompute is not None and recompute.choice is not None:
        choice = recompute.choice, recompute.is_trial
    parts = plan.division.parts if plan.chooses_rows else None
    objects = tuple(field.value for field in key.fields if field.name == MODEL_OBJECT)
    capacity = plan.capacity if plan.is_shortened else None
    return objects, key.program, unrolled, choice, parts, capacity


def lower(request: Request, log: CompileLog) -> Lowering:
    """Traces and lowers a program, for the devices of its plan."""
    program, plan, key = request.program, request.plan, request.key
    group = group_of(key, plan, program.unrolled)
    cause, again = log.cause(key, group)
    arguments = jax.tree.map(
        lambda spec: jax.ShapeDtypeStruct(
            spec.shape, spec.dtype, sharding=spec.sharding or plan.group.whole
        ),
        program.arguments,
    )
    # An error about a non-finite value is reported with the state before it, which must survive.
    donated = () if looks_for_non_finite() else program.donated
    # With no arguments to follow, results would lie on the default device.
    results = program.results if program.arguments else program.results or plan.group.whole
    jitted = jax.jit(program.function, donate_argnums=donated, out_shardings=results)
    one_at_a_time = contextlib.nullcontext() if request.model is None else tracing(request.model)
    with (
        log.attempt(group, again),
        one_at_a_time,
        fewer_collections(),
        progress("tracing", request.what),
    ):
        begin = time.perf_counter()
        traced = jitted.trace(*arguments)
        between = time.perf_counter()
        lowered = lower_program(traced, request.model)
        end = time.perf_counter()
    options = dict(request.compiler_options or {})
    if plan.recompute is not None:
        options = {**options_of_recomputation(plan.group.platform, plan.recompute), **options}
    if program.keeps_barriers:
        options = {**options_with_barriers(plan.group.platform), **options}
    return Lowering(
        what=request.what,
        key=key,
        lowered=lowered,
        devices=plan.group.devices,
        cause=cause,
        again=again,
        group=group,
        trace_seconds=request.trace_seconds + between - begin,
        lower_seconds=end - between,
        batch=str(plan.batch),
        capacity=plan.capacity,
        unrolled=program.unrolled,
        options=options,
        layers=request.layers,
        shares=not plan.tapped,  # tapped values are in trees with queues
        model=request.model,
        plan=plan,
        source=program.source,
    )
