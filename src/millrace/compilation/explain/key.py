"""The key of a program, field by field: all that decides the executable.

    ARGUMENT   argument x: shape                  of batches, or of the arguments of a call
    STATE      variable kernel of layer 1 (...)   shape, dtype, role
    OPTION     gradient_accumulation_steps_...    options of the model, by their public names
    MODEL      layer 1 (Dense), optimizer, loss   `fingerprint.py`
    CODE       `rate`, closed over by loss()      `functions.py`
    JAX        jax_default_matmul_precision       by which JAX tells traces apart
    DEVICE, FLAG, VERSION                         devices, flags and versions
    IDENTITY   model object, strategy             not part of the digest

Nothing is traced for a key. That of a ResNet50 takes 25 ms on one core of a server, where tracing
the model takes 1 s.
"""

import inspect
import os
import platform
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields as fields_of
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.jax_tracing import jax_options
from millrace.base.options import TapRequest, key_fields
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.explain.fingerprint import (
    describe,
    describe_model,
    describe_state,
    finished,
)
from millrace.compilation.explain.value_text import digest, text_of, without_address
from millrace.compilation.explain.walk import Description, Walk, version_of
from millrace.programs.plan import BatchSpec, Plan

Pairs = Iterable[tuple[str, object]] | Mapping[str, object]
ObjectNumbers = Iterable[tuple[str, object]]  # such as ("model object", "number 2")

_BATCH = ("x", "y", "sample_weight")
_NUMBERS = (bool, int, float, complex)


def key_of(
    program_name: str,
    model: keras.Model,
    plan: Plan,
    *,
    unroll: int | None = None,
    compiler_options: Mapping[str, object] | None = None,
    identity: ObjectNumbers = (),
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
        identity: numbers of objects: `"model object"`, `"strategy"`, `"compile() calls"`.
        options: options of millrace by their public names that are not part of a plan.
        description: of the model for the plan's mode; None makes one, which takes most of the time.
        state: the result of `describe_state`; None calls it.
    """
    description = description or describe_model(model, plan.mode)
    accumulator = describe(plan.accumulation.dtype, "dtype", Aspect.OPTION)
    variables = tuple(describe_state(model, plan.mode) if state is None else state)
    order = digest("\n".join(f"{field.name}\n{field.value}" for field in variables).encode())
    fields = [
        *_batch_fields(plan.batch),
        *fields_from(Aspect.OPTION, _plan_options(plan, unroll)),
        *fields_from(Aspect.OPTION, options),
        *accumulator.fields,
        *description.fields,
        *variables,
        KeyField(Aspect.OPTION, "order of variables", order),  # a digest sorts its fields
        # The plan decides where its programs run, not the default.
        *(
            field
            for field in _environment(plan.group.devices, compiler_options)
            if field.name != "jax_default_device"
        ),
        *fields_from(Aspect.IDENTITY, identity),
    ]
    is_complete = description.is_complete and accumulator.is_complete
    # Labels are given twice: two functions of one name must not hide each other.
    described = {(field.aspect, field.name): field.value for field in description.fields}
    is_complete &= all(
        described.get((field.aspect, field.name), field.value) == field.value
        for field in accumulator.fields
    )
    return ProgramKey(model.name, program_name, _once(fields), is_complete)


def key_of_call(
    name: str,
    function: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    static: Collection[int | str] = (),
    identity: ObjectNumbers = (),
    compiler_options: Mapping[str, object] | None = None,
) -> ProgramKey:
    """Returns the key of the program that a call of a compiled function runs.

    Args:
        name: of the program.
        function: plain, or the result of `jax.jit`.
        args: of the call; donated arrays can still be described.
        kwargs: of the call.
        static: numbers and names of arguments that are constants of the program.
        identity: number of the function: `"function object"`.
        compiler_options: of XLA.
    """
    walk, inner = Walk(), getattr(function, "__wrapped__", function)
    walk.add(Aspect.CODE, f"function {name}", text_of(walk, inner))
    _write_arguments(walk, inner, args, kwargs, static)
    description = finished(walk)
    fields = [
        *description.fields,
        *_environment(_devices_of((args, kwargs)), compiler_options),
        *fields_from(Aspect.IDENTITY, identity),
    ]
    return ProgramKey("", name, _once(fields), description.is_complete)


def fields_from(aspect: Aspect, pairs: Pairs) -> Iterator[KeyField]:
    """Makes fields of names and values."""
    for name, value in dict(pairs).items():
        yield KeyField(aspect, name, str(value))


def versions() -> dict[str, str]:
    """Returns the versions of all packages that take part in tracing and compiling."""
    return {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": str(version_of("jaxlib")),
        "keras": keras.__version__,
        "numpy": np.__version__,
        # Not imported: the top-level package imports this one.
        "millrace": str(getattr(sys.modules["millrace"], "__version__", "unknown")),
    }


def _once(fields: Iterable[KeyField]) -> tuple[KeyField, ...]:
    """Returns the fields, one for each name: a package's version may be listed twice."""
    return tuple({(field.aspect, field.name): field for field in fields}.values())


def _batch_fields(batch: BatchSpec) -> Iterator[KeyField]:
    """Yields structure, shapes and dtypes of a batch; nothing for a program that takes none."""
    if batch.treedef is None:
        return
    tree = jax.tree.unflatten(batch.treedef, range(len(batch.shapes)))
    is_tuple = isinstance(tree, tuple | list) and 1 <= len(tree) <= len(_BATCH)
    # Of a data adapter of Keras; any other tree is an x.
    arguments = dict(zip(_BATCH, tree if is_tuple else (tree,), strict=False))
    for name, argument in arguments.items():
        if argument is not None:
            yield KeyField(Aspect.ARGUMENT, f"argument {name}: structure", _structure(argument))
        for path, number in jax.tree_util.tree_flatten_with_path(argument)[0]:
            leaf = f"argument {name}{jax.tree_util.keystr(path)}"
            shape, dtype = batch.shapes[number], batch.dtypes[number]
            yield KeyField(Aspect.ARGUMENT, f"{leaf}: shape", str(tuple(shape)))
            yield KeyField(Aspect.ARGUMENT, f"{leaf}: dtype", dtype.name)


def _structure(tree: object) -> str:
    """Returns the structure of a value: `{'image': *, 'age': *}`, where `*` is an array."""
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{k!r}: {_structure(v)}' for k, v in tree.items())}}}"
    if isinstance(tree, list | tuple):
        text = ", ".join(map(_structure, tree))
        return f"({text})" if isinstance(tree, tuple) else f"[{text}]"
    return "None" if tree is None else "*"


def _plan_options(plan: Plan, unroll: int | None) -> Iterator[tuple[str, object]]:
    """Yields the options of a model, and the sizes that follow from them."""
    recompute = plan.recompute
    yield "mode", plan.mode.value
    yield from key_fields(plan.accumulation)
    yield from key_fields(plan.replication)
    yield "recomputation", "off" if recompute is None else "on"
    yield "recomputation budget", None if recompute is None else recompute.budget
    yield "recomputation choice", None if recompute is None else recompute.choice
    yield "recomputation of whole stages", recompute is not None and recompute.whole_stages
    yield from key_fields(plan.offload)
    for field in fields_of(TapRequest):
        yield f"tensor statistics: {field.name}", getattr(plan.taps, field.name)
    yield "values are tapped", plan.tapped
    yield "asynchronous_callbacks", plan.step_logs
    yield "steps in a block", plan.capacity
    yield "steps whose results a call returns", plan.records
    yield "steps in unrolled code", "a loop" if unroll is None else unroll


def _write_arguments(
    walk: Walk,
    function: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    static: Collection[int | str],
) -> None:
    """Adds arguments as JAX tells calls apart: arrays by type and device, others by value."""
    by_keyword = ", ".join(sorted(kwargs))
    walk.add(Aspect.ARGUMENT, "arguments passed by keyword", by_keyword)
    named = [*zip(_parameter_names(function, args), args, strict=True), *kwargs.items()]
    for number, (name, value) in enumerate(named):
        if name in static or (number < len(args) and number in static):
            walk.add(Aspect.ARGUMENT, f"static argument {name}", text_of(walk, value))
        else:
            _write_tree(walk, f"argument {name}", value)


def _parameter_names(function: Any, args: tuple[object, ...]) -> list[str]:
    """Returns the name of each positional argument; those that share a name are numbered."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in kinds]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    more = [f"{variadic}[{number}]" for number in range(len(args) - len(positional))]
    return [*positional, *more][: len(args)]


def _write_tree(walk: Walk, name: str, value: object) -> None:
    leaves, tree = jax.tree_util.tree_flatten_with_path(value)
    text = without_address(str(tree)).removeprefix("PyTreeDef")
    walk.add(Aspect.ARGUMENT, f"{name}: structure", text)
    for path, leaf in leaves:
        leaf_name = f"{name}{jax.tree_util.keystr(path)}"
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, *_NUMBERS)):
            walk.add(Aspect.ARGUMENT, leaf_name, text_of(walk, leaf))
            continue
        dtype = jax.dtypes.canonicalize_dtype(jax.dtypes.result_type(leaf))
        is_number = isinstance(leaf, _NUMBERS) and not isinstance(leaf, bool | np.generic)
        is_weak = is_number or getattr(leaf, "weak_type", False)
        walk.add(Aspect.ARGUMENT, f"{leaf_name}: shape", str(np.shape(leaf)))
        walk.add(Aspect.ARGUMENT, f"{leaf_name}: dtype", str(dtype))
        walk.add(
            Aspect.ARGUMENT,
            f"{leaf_name}: weak type",
            "yes, of a Python number" if is_weak else "no",
        )
        walk.add(Aspect.ARGUMENT, f"{leaf_name}: placement", _placement(leaf))


def _placement(leaf: object) -> str:
    """Returns the devices to which an array is committed; most arrays are free."""
    if not isinstance(leaf, jax.Array) or not getattr(leaf, "committed", False):
        return "free"
    sharding = leaf.sharding
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"{device.platform}:{device.id}, memory {sharding.memory_kind}"
    return without_address(repr(sharding))


def _devices_of(arguments: object) -> list[Any]:
    """Returns the devices of a call: those of a committed argument, or the default one."""
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, jax.Array) and getattr(leaf, "committed", False):
            return sorted(leaf.sharding.device_set, key=lambda device: device.id)
    default: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    return [default] if isinstance(default, jax.Device) else jax.devices()[:1]


def _environment(
    devices: Iterable[jax.Device], compiler_options: Mapping[str, object] | None
) -> Iterator[KeyField]:
    """Yields the fields that most programs of a process share."""
    devices, config = list(devices), keras.config
    for name in ("floatx", "epsilon", "image_data_format", "is_flash_attention_enabled"):
        value = getattr(config, name)()
        yield KeyField(Aspect.OPTION, f"keras.config.{name}()", str(value))
    if devices:
        yield KeyField(Aspect.DEVICE, "platform", devices[0].platform)
        yield KeyField(Aspect.DEVICE, "kind of device", devices[0].device_kind)
        yield KeyField(Aspect.DEVICE, "number of devices", str(len(devices)))
        yield KeyField(Aspect.DEVICE, "devices", ", ".join(str(each.id) for each in devices))
    yield from fields_from(Aspect.JAX, jax_options())
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        yield KeyField(Aspect.FLAG, name, " ".join(sorted(os.environ.get(name, "").split())))
    options = sorted((compiler_options or {}).items())
    yield KeyField(Aspect.FLAG, "compiler options", " ".join(f"{k}={v}" for k, v in options))
    yield from fields_from(Aspect.VERSION, versions())
