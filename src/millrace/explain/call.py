"""The fields of a key that say what a function is called with."""

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from millrace.explain.fingerprint import describe_value
from millrace.explain.values import without_address
from millrace.explain.walk import Description
from millrace.records.compilation import Aspect, KeyField


def argument_descriptions(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], static: Collection[int | str]
) -> Iterator[Description]:
    """Describes arguments as JAX tells calls apart: arrays by kind and place, others by value.

    Args:
        function: that takes them.
        args: by position.
        kwargs: by name.
        static: numbers and names of those that are constants of the program.
    """
    by_keyword = ", ".join(sorted(kwargs))
    yield _described(KeyField(Aspect.ARGUMENT, "arguments passed by keyword", by_keyword))
    names = _names(function, args)
    for number, (name, value) in enumerate([*zip(names, args, strict=True), *kwargs.items()]):
        if name in static or (number < len(args) and number in static):
            yield describe_value(value, f"static argument {name}", Aspect.ARGUMENT)
        else:
            yield from _tree_descriptions(name, value)


def _names(function: Any, args: tuple[Any, ...]) -> list[str]:
    """Returns the name of each positional argument; those that share a name are numbered."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    more = [f"{rest}[{number}]" for number in range(len(args) - len(positional))]
    return [*positional, *more][: len(args)]


def _tree_descriptions(name: str, value: Any) -> Iterator[Description]:
    leaves, tree = jax.tree_util.tree_flatten_with_path(value)
    text = without_address(str(tree)).removeprefix("PyTreeDef")
    yield _described(KeyField(Aspect.ARGUMENT, f"argument {name}: structure", text))
    for path, leaf in leaves:
        place = f"argument {name}{jax.tree_util.keystr(path)}"
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
            for what, text in _leaf_facts(leaf):
                yield _described(KeyField(Aspect.ARGUMENT, f"{place}: {what}", text))
        else:
            yield describe_value(leaf, place, Aspect.ARGUMENT)


def _leaf_facts(leaf: Any) -> Iterator[tuple[str, str]]:
    is_number = isinstance(leaf, bool | int | float | complex) and not isinstance(leaf, np.generic)
    dtype = jax.dtypes.canonicalize_dtype(jax.dtypes.result_type(leaf))
    weak = (is_number and not isinstance(leaf, bool)) or getattr(leaf, "weak_type", False)
    yield "shape", str(np.shape(leaf))
    yield "dtype", str(dtype)
    yield "weak type", "yes, of a Python number" if weak else "no"
    yield "placement", _placement(leaf)


def _placement(leaf: Any) -> str:
    """Returns where an array has to stay; most are free to go where they are used."""
    if not isinstance(leaf, jax.Array) or not getattr(leaf, "committed", False):
        return "free"
    sharding = leaf.sharding
    if isinstance(sharding, jax.sharding.SingleDeviceSharding):
        (device,) = sharding.device_set
        return f"{device.platform}:{device.id}, memory {sharding.memory_kind}"
    return without_address(repr(sharding))


def _described(field: KeyField) -> Description:
    return Description((field,), is_complete=True)
