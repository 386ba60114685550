"""The form of the values in a checkpoint of a fit.

A file can be whole and yet hold other values: an edited one, or one of another version. All that is
read from it later is compared here, before anything of the training has changed.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from millrace.base.checkpoints.manifest import Manifest
from millrace.run.resuming.model_values import ROLES

ValueForm = Callable[[Any], bool]


def check_fit_values(manifest: Manifest, model: Any, others: Any) -> None:
    """Compares the values of a checkpoint with the form in which a fit writes them.

    Raises:
        ValueError: naming the first that has another form.
    """
    _check("its values", others, _is(dict))
    for name, is_right in _OTHERS.items():
        if name not in others:
            raise ValueError(f"{name} is missing")
        _check(name, others[name], is_right)
    _check("stages", others.get("stages"), _or_none(_list_of(_is_count)))  # of newer files
    position = others["position"]
    for name in ("epoch_step", "pass_step"):  # as many batches are drawn again
        _check(f"{name} of the position", position[name], lambda n: n <= manifest.step)
    _check("model", model, _has(dict.fromkeys(ROLES, _is_arrays)))
    if others["pass_state"] is None and (position["source"] is None or not position["pass_step"]):
        raise ValueError("the pass through the data has no state")
    for role in ROLES:
        shapes = [tuple(shape) for _, shape, _ in others["facts"]["variables"][role]]
        if role != "metric" and [value.shape for value in model[role]] != shapes:
            raise ValueError(f"its {role} values have other shapes than its variables")


def _check(name: str, value: Any, is_right: ValueForm) -> None:
    if not is_right(value):
        raise ValueError(f"{name}: {str(value)[:80]}")


def _is(*kinds: type) -> ValueForm:
    return lambda value: type(value) in kinds


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _or_none(is_right: ValueForm) -> ValueForm:
    return lambda value: value is None or is_right(value)


def _list_of(is_right: ValueForm) -> ValueForm:
    return lambda value: type(value) is list and all(map(is_right, value))


def _dict_of(is_right: ValueForm) -> ValueForm:
    return lambda value: (
        type(value) is dict
        and all(type(name) is str for name in value)
        and all(map(is_right, value.values()))
    )


def _has(fields: dict[str, ValueForm]) -> ValueForm:
    return lambda value: (
        type(value) is dict
        and all(name in value and is_right(value[name]) for name, is_right in fields.items())
    )


_is_arrays = _list_of(_is(np.ndarray))


def _is_variable(value: Any) -> bool:
    if type(value) is not list or len(value) != 3:
        return False
    path, shape, dtype = value
    return type(path) is str and _list_of(_is_count)(shape) and type(dtype) is str


def _is_random(value: Any) -> bool:
    if not _has({"python": _is(tuple), "numpy": _is(tuple)})(value):
        return False
    try:
        random.Random().setstate(value["python"])
        np.random.RandomState().set_state(value["numpy"])
    except (ValueError, TypeError, OverflowError, IndexError, KeyError):
        return False
    seeds = {name: seed for name, seed in value.items() if name not in ("python", "numpy")}
    return all(
        type(seed) is np.ndarray and (name == "torch" or seed.shape == (2,))
        for name, seed in seeds.items()
    )


def _is_logs(value: Any) -> bool:
    if type(value) is dict:
        return all(type(name) is str and _is_logs(each) for name, each in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_logs, value))
    return value is None or isinstance(value, np.ndarray | np.generic)


def _is_progress(value: Any) -> bool:
    is_right = _has({"fit": _is_count, "steps_before": _is_count, "histories": _is(list)})
    return is_right(value) and len(value["histories"]) == value["fit"] - 1


_is_callbacks = _list_of(_has({"kind": _is(str), "state": lambda _: True}))
_is_pass = _or_none(_has({"random": _is_random, "dataset": _or_none(_dict_of(lambda _: True))}))

_OTHERS: dict[str, ValueForm] = {
    "progress": _is_progress,
    "facts": _has(
        {
            "layers": _list_of(_is(str)),
            "variables": _has(dict.fromkeys(ROLES, _list_of(_is_variable))),
            "optimizer": _or_none(_dict_of(lambda _: True)),
        }
    ),
    "data": _dict_of(_is(str)),
    "options": _dict_of(_is(str)),
    "position": _has(
        {
            "epoch_step": _is_count,
            "pass_step": _is_count,
            "pass_length": _or_none(_is_count),
            "epochs": _is_count,
            "source": _or_none(_has({"drawn": _is_count, "state": lambda _: True})),
            "passes": lambda value: type(value) is tuple and all(map(_is_count, value)),
        }
    ),
    "pass_state": _is_pass,
    "pass_before": _is_pass,
    "random": _is_random,
    "callbacks": _is_callbacks,
    "ended": _or_none(
        _has(
            {
                "logs": _is_logs,
                "metrics": _dict_of(_is_arrays),
                "callbacks": _is_callbacks,
                "validated": _list_of(_is_count),
            }
        )
    ),
    "validated": _list_of(_is_count),
    "stopped": _is(bool),
}
