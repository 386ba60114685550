"""The key of a program: everything that decides what is compiled, field by field.

    ARGUMENT   argument x: shape                  of batches, or of what a function is called with
    STATE      variable kernel of layer 1 (...)   shape, dtype, role
    OPTION     gradient_accumulation_steps_...    what was set on the model, by its public name
    MODEL      layer 1 (Dense), optimizer, loss   `fingerprint.py`
    CODE       `rate`, closed over by loss()      `fingerprint.py`
    JAX        jax_default_matmul_precision       what JAX itself tells traces apart by
    DEVICE, FLAG, VERSION                         where, with which flags, by which versions
    IDENTITY   model object, strategy             no part of the digest

Nothing is traced for it. The key of a ResNet50 takes 25 ms on one core of a server, where tracing
it takes 1 s.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import keras

from millrace.explain.call import argument_descriptions
from millrace.explain.fingerprint import (
    describe_function,
    describe_model,
    describe_state,
    describe_value,
)
from millrace.explain.plan import batch_fields, plan_options
from millrace.explain.surroundings import Pairs, fields_from, surroundings
from millrace.explain.values import digest
from millrace.explain.walk import Description
from millrace.plan import Plan
from millrace.records.compilation import Aspect, KeyField, ProgramKey

Identity = Iterable[tuple[str, object]]  # names and values of what says which object something is


_DEFAULT = "jax_default_device"


def key_of(
    program_name: str,
    model: keras.Model,
    plan: Plan,
    *,
    unroll: int | None = None,
    compiler_options: Mapping[str, Any] | None = None,
    identity: Identity = (),
    options: Pairs = (),
    description: Description | None = None,
    state: Iterable[KeyField] | None = None,
) -> ProgramKey:
    """Returns the key of a program of a model.

    Args:
        program_name: such as `"train_run"`.
        model: built, and compiled where its mode needs that.
        plan: of the program.
        unroll: copies of a step in the program; None is a loop.
        compiler_options: of XLA, for this program alone.
        identity: which objects these are: `"model object"`, `"strategy"`, `"compile() calls"`.
        options: further options of millrace by their public names, which no plan has.
        description: of the model for the plan's mode, if it is known; it takes most of the time.
        state: what `describe_state` says, if that is known.
    """
    description = description or describe_model(model, plan.mode)
    accumulator = describe_value(plan.accumulation.dtype, "dtype", Aspect.OPTION)
    variables = tuple(describe_state(model, plan.mode) if state is None else state)
    order = digest("\n".join(f"{field.name}\n{field.value}" for field in variables).encode())
    found = [
        *batch_fields(plan.batch),
        *fields_from(Aspect.OPTION, plan_options(plan, unroll)),
        *fields_from(Aspect.OPTION, options),
        *accumulator.fields,
        *description.fields,
        *variables,
        KeyField(Aspect.OPTION, "order of variables", order),  # which a digest does not have
        # A plan says where its programs run, whatever the default is.
        *(f for f in surroundings(plan.group.devices, compiler_options) if f.name != _DEFAULT),
        *fields_from(Aspect.IDENTITY, identity),
    ]
    is_complete = description.is_complete and accumulator.is_complete
    return ProgramKey(model.name, program_name, _once(found), is_complete)


def key_of_call(
    name: str,
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    static: Collection[int | str] = (),
    identity: Identity = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> ProgramKey:
    """Returns the key of the program that a call of a compiled function runs.

    Args:
        name: of the program.
        function: plain, or what `jax.jit` made of it.
        args: it is called with; arrays that were given away can still be described.
        kwargs: it is called with.
        static: numbers and names of arguments that are constants of the program.
        identity: which object this is: `"function object"`.
        compiler_options: of XLA.
    """
    inner = getattr(function, "__wrapped__", function)
    parts = [
        describe_function(inner, f"function {name}"),
        *argument_descriptions(inner, args, kwargs, static),
    ]
    found = [field for part in parts for field in part.fields]
    found += surroundings(_devices_of((args, kwargs)), compiler_options)
    found += fields_from(Aspect.IDENTITY, identity)
    return ProgramKey("", name, _once(found), all(part.is_complete for part in parts))


def _devices_of(arguments: Any) -> list[Any]:
    """Returns the devices that a call runs on: those of arguments that are bound to some."""
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, jax.Array) and getattr(leaf, "committed", False):
            return sorted(leaf.sharding.device_set, key=lambda device: device.id)
    default: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    return [default] if isinstance(default, jax.Device) else jax.devices()[:1]


def _once(found: Iterable[KeyField]) -> tuple[KeyField, ...]:
    """Returns the fields, one of each name: a package's version may have been found twice."""
    return tuple({(field.aspect, field.name): field for field in found}.values())
