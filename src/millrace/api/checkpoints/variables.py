"""Variables and optimizers: what they are, compared with what was saved; and their values."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.api.checkpoints.parts import Comparison
from millrace.base.checkpoints.arrays import ArrayLayout
from millrace.base.checkpoints.plain_values import host_copy
from millrace.run.processes.agreement import own_copy


def variable_facts(variables: Sequence[keras.Variable]) -> list[Any]:
    """Returns the path, the shape and the dtype of each variable."""
    return [[v.path, list(v.shape), str(v.dtype)] for v in variables]


def layout(values: Iterable[Any]) -> list[ArrayLayout]:
    """Returns the shape and the dtype of each variable, or of each array."""
    return [(tuple(value.shape), str(value.dtype)) for value in values]


def put(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    """Assigns a value to each variable."""
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def host_copies(values: Sequence[Any]) -> list[np.ndarray]:
    """Copies values to the host, all of them at once, and waits for the device."""
    for value in values:
        if isinstance(value, jax.Array) and value.is_fully_addressable:
            value.copy_to_host_async()
    return [host_copy(own_copy(value)) for value in values]


def optimizer_facts(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the class and the settings of an optimizer, without what may differ."""
    config = {"class_name": type(optimizer).__name__, **optimizer.get_config()}
    return _without_names(json.loads(json.dumps(config, default=_plain)))


def check_optimizer(
    before: Mapping[str, Any], now: Mapping[str, Any], name: str, comparison: Comparison
) -> None:
    """Refuses an optimizer with other facts than were saved: raises the first difference."""
    for key in dict.fromkeys(("class_name", *before, *now)):
        if before.get(key) != now.get(key):
            what = name if key == "class_name" else f"{key} of {name}"
            raise comparison.difference(what, before.get(key), now.get(key))


def check_variables(
    saved: Sequence[Any], own: Sequence[keras.Variable], kind: str, comparison: Comparison
) -> None:
    """Refuses variables of other shapes and dtypes than were saved: raises the first difference.

    Args:
        saved: that `variable_facts` has returned.
        own: the variables.
        kind: of the variables, for the message.
        comparison: has the words.
    """
    for before, now in zip(saved, variable_facts(own), strict=False):
        if before[1:] != now[1:]:
            there = f"{before[2]}{before[1]} of {before[0]!r}"
            raise comparison.difference(f"{kind} {now[0]!r}", there, f"{now[2]}{now[1]}")
    if len(saved) != len(own):
        raise comparison.difference(f"the number of {kind}s", len(saved), len(own))


def _without_names(config: Any) -> Any:
    """Returns a configuration without what may differ: names, and rates that are variables."""
    if isinstance(config, list):  # such as what a function of a MultiOptimizer refers to
        return list(map(_without_names, config))
    if not isinstance(config, dict):
        return config
    return {
        name: _without_names(value)
        for name, value in config.items()
        if name != "name" and not (name == "learning_rate" and isinstance(value, float))
    }


def _plain(value: object) -> object:
    config = getattr(value, "get_config", None)
    if config is not None:
        return {"class_name": type(value).__name__, **config()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else type(value).__name__
