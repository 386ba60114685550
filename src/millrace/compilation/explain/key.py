"""The key of a program, field by field: all that decides the executable.

Those of a model are made in `model_keys.py`, of a user's function here.

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
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.jax_tracing import jax_options
from millrace.base.records.compilation import Aspect, KeyField, ProgramKey
from millrace.compilation.explain.fingerprint import finished
from millrace.compilation.explain.value_text import text_of, without_address
from millrace.compilation.explain.walk import Walk, version_of

Pairs = Iterable[tuple[str, object]] | Mapping[str, object]
ObjectNumbers = Iterable[tuple[str, object]]  # such as ("model object", "number 2")

_NUMBERS = (bool, int, float, complex)


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
        *environment_fields(devices_of_call((args, kwargs)), compiler_options),
        *fields_from(Aspect.IDENTITY, identity),
    ]
    return ProgramKey("", name, once(fields), description.is_complete)


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


def once(fields: Iterable[KeyField]) -> tuple[KeyField, ...]:
    """Returns the fields, one for each name: a package's version may be listed twice."""
    return tuple({(field.aspect, field.name): field for field in fields}.values())


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


def devices_of_call(arguments: object) -> tuple[jax.Device, ...]:
    """Returns where JAX runs a function: on the devices of committed arguments, or the default."""
    for leaf in jax.tree.leaves(arguments):
        if isinstance(leaf, jax.Array) and getattr(leaf, "committed", False):
            return tuple(sorted(leaf.sharding.device_set, key=lambda device: device.id))
    default: Any = jax.config.jax_default_device  # type: ignore[attr-defined]
    if isinstance(default, jax.Device):
        return (default,)
    return tuple(jax.local_devices(backend=default)[:1])


def environment_fields(
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
