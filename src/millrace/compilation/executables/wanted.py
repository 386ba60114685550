"""A program whose executable is wanted, as far as it is known before anything is traced.

LoggedProgram    what the compile log says of it
Wanted           and what finding its executable takes
make()           its code, where it must be compiled: this may trace a model
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import keras

from millrace.base.records.compilation import ProgramKey
from millrace.programs.plan import LoopForm, Plan

MODEL_OBJECT = "model object"  # the name of a field of identity
Group = Hashable  # shared by programs of which the second one is a recompilation


class Code(NamedTuple):
    """The code of a program, ready to be traced."""

    trace: Callable[[], jax.stages.Traced]
    shares: Callable[[jax.stages.Traced], bool]  # whether its executable may serve equal programs
    options: Mapping[str, Any]  # of XLA, for this program alone
    seconds: float = 0.0  # already spent on tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedProgram:
    """A program as the compile log describes it."""

    key: ProgramKey
    what: str  # in words
    groups: frozenset[Group]
    batch: str = ""  # shapes and dtypes of a batch, or of the arguments of a function
    capacity: int = 0  # steps that its block holds
    unrolled: int | None = None  # iterations in unrolled code; None for a loop of any number


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(LoggedProgram):
    """A program to find the executable of."""

    make: Callable[[], Code]
    devices: tuple[jax.Device, ...]
    layers: tuple[str, ...] = ()  # names of the model's layers, in order
    obstacle: str | None = None  # why no other process may use its executable
    form: LoopForm | None = None  # of the plan's programs
    # For those who look into the executable: the model that it calls, if any, the plan of a
    # model's program, and what it was made of, as in `Program`.
    model: keras.Model | None = field(default=None, compare=False)
    plan: Plan | None = None
    source: object = field(default=None, compare=False)


def group_of(key: ProgramKey, plan: Plan, unrolled: int | None) -> Group:
    """Returns the group of a model's program."""
    # Both forms of a loop, and the attempts of a choice by memory, are groups by themselves.
    recompute = plan.recompute
    choice = None
    if recompute is not None and recompute.choice is not None:
        choice = recompute.choice, recompute.is_trial
    parts = plan.division.parts if plan.chooses_rows else None
    objects = tuple(field.value for field in key.fields if field.name == MODEL_OBJECT)
    capacity = plan.capacity if plan.is_shortened else None
    return objects, key.program, unrolled, choice, parts, capacity


def of_plan(
    key: ProgramKey,
    plan: Plan,
    make: Callable[[], Code],
    model: keras.Model,
    obstacle: str | None,
    *,
    unrolled: int | None = None,
    layers: tuple[str, ...] = (),
    form: LoopForm | None = None,
    source: object = None,
) -> Wanted:
    """Returns a program of a model as it is wanted; see `Wanted`."""
    return Wanted(
        key=key,
        what=f"{key.program} of {key.model!r} for batches of {plan.batch}",
        groups=frozenset({group_of(key, plan, unrolled)}),
        batch=str(plan.batch),
        capacity=plan.capacity,
        unrolled=unrolled,
        make=make,
        devices=plan.group.devices,
        layers=layers,
        obstacle=obstacle,
        form=form,
        model=model,
        plan=plan,
        source=source,
    )
