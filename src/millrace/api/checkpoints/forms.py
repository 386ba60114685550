"""The form of the values in a checkpoint of a fit.

A file can be whole and yet hold other values: an edited one, or one of another version. All that is
read from it later is compared here, before anything of the training has changed.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace.api.checkpoints.model_values import METRIC, METRIC_PARTS, ROLES
from millrace.api.checkpoints.parts import SavedTraining


def check_form(saved: SavedTraining) -> None:
    """Compares the values of a checkpoint with the form in which a fit writes them.

    Raises:
        ValueError: naming the first that has another form.
    """
    for found, forms in ((saved.facts, _FACTS), (saved.values, _VALUES)):
        for name, form in forms.items():
            _check(name, found[name], form)
    data, model = saved.values["data"], saved.values["model"]
    position = data["position"]
    for name in ("epoch_step", "pass_step"):  # as many batches are drawn again
        if position[name] > saved.checkpoint.manifest.step:
            raise ValueError(f"{name} of the position: {position[name]}")
    if data["pass_state"] is None and (position["source"] is None or not position["pass_step"]):
        raise ValueError("the pass through the data has no state")
    for role in ROLES:
        shapes = [tuple(shape) for _, shape, _ in saved.facts["model"]["variables"][role]]
        if [value.shape for value in model[role]] != shapes:
            raise ValueError(f"its {role} values have other shapes than its variables")


def _check(name: str, value: Any, form: Any) -> None:
    if not _has_form(value, form):
        raise ValueError(f"{name}: {str(value)[:80]}")


def _has_form(value: Any, form: Any) -> bool:
    """Tells whether a value has a form.

    Args:
        value: from a checkpoint.
        form: a class; None; a list of one form, for each item; a dict of forms by key; a tuple of
            forms, one of which is enough; or a function that tells it.
    """
    if form is None or isinstance(form, type):
        return type(value) is (type(None) if form is None else form)
    if isinstance(form, tuple):
        return any(_has_form(value, each) for each in form)
    if isinstance(form, list):
        return type(value) is list and all(_has_form(each, form[0]) for each in value)
    if isinstance(form, dict):
        return type(value) is dict and all(
            name in value and _has_form(value[name], each) for name, each in form.items()
        )
    return form(value)


def _any(value: Any) -> bool:
    del value  # is looked at where it is used
    return True


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _counts(value: Any) -> bool:
    return type(value) is tuple and all(map(_count, value))


def _names(value: Any) -> bool:
    return type(value) is dict and all(type(name) is str for name in value)


def _texts(value: Any) -> bool:
    return _names(value) and all(type(each) is str for each in value.values())


def _variable(value: Any) -> bool:
    forms = (str, [_count], str)
    return type(value) is list and len(value) == 3 and all(map(_has_form, value, forms))


def _random(value: Any) -> bool:
    if not _has_form(value, {"python": tuple, "numpy": tuple}):
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


def _logs(value: Any) -> bool:
    if type(value) is dict:
        return _names(value) and all(map(_logs, value.values()))
    if type(value) in (list, tuple):
        return all(map(_logs, value))
    return value is None or isinstance(value, np.ndarray | np.generic)


def _progress(value: Any) -> bool:
    form = {"fit": _count, "steps_before": _count, "histories": list, "stopped": bool}
    return _has_form(value, form) and len(value["histories"]) == value["fit"] - 1


_ARRAYS = [np.ndarray]
_DRAWING = {"random": _random, "adapter_epoch": (None, _count)}
_DATASET = {"own": _any, "generators": _ARRAYS, "samplers": list}
_PASS = (None, {**_DRAWING, "dataset": (None, _DATASET)})
_POSITION = {
    "epoch_step": _count,
    "pass_step": _count,
    "pass_length": (None, _count),
    "epochs": _count,
    "source": (None, {"drawn": _count, "state": _any}),
    "passes": _counts,
}
_FACTS: Mapping[str, Any] = {
    "model": {"variables": {role: [_variable] for role in ROLES}, "optimizer": (None, _names)},
    "data": _texts,
}
_VALUES: Mapping[str, Any] = {
    "progress": _progress,
    "options": _texts,
    "stages": (None, [_count]),
    "model": dict.fromkeys(ROLES, _ARRAYS),
    "metrics": dict.fromkeys((METRIC, METRIC_PARTS), _ARRAYS),
    "callbacks": [{"kind": str, "state": _any}],
    "data": {"position": _POSITION, "pass_state": _PASS, "pass_before": _PASS, **_DRAWING},
    "validated": [_count],
    "ended": (None, {"logs": _logs}),
}
