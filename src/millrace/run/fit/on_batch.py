"""`train_on_batch`, `test_on_batch` and `predict_on_batch`, once there is nothing left to build.

    Keras's own    looks for layers to build; moves the batch to the device, twice; takes the values
                   of all variables, stores them in the model, and assigns them one by one
    here           takes the values, and puts those back that the function returns

Keras's own methods run until all is built, within a loop of the model, for a model of several
devices, and for batches of anything but arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import keras
import numpy as np

from millrace._compat.keras_loops import (
    REPORTS_BATCH,
    put_values,
    reported_logs,
    variables_of,
)
from millrace._compat.keras_steps import stored_value
from millrace.base.pytrees import ArrayTree
from millrace.programs.plan import Mode
from millrace.programs.steps.state import ROLES, State
from millrace.run.fit.controller import Controller
from millrace.run.fit.functions import LoopFunction

NAMES = {mode: f"{mode.value}_on_batch" for mode in Mode}


class _Given(NamedTuple):
    """The arguments of a call."""

    batch: tuple[Any, ...]
    return_dict: bool = False
    is_whole: bool = True  # whether nothing else was given


def _train_on_batch(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    class_weight: object = None,
    return_dict: bool = False,
) -> _Given:
    return _Given((x, y, sample_weight), return_dict, class_weight is None)


def _test_on_batch(
    x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
) -> _Given:
    return _Given((x, y, sample_weight), return_dict)


def _predict_on_batch(x: Any) -> _Given:
    return _Given((x,))


_GIVEN: dict[Mode, Callable[..., _Given]] = {
    Mode.TRAIN: _train_on_batch,
    Mode.TEST: _test_on_batch,
    Mode.PREDICT: _predict_on_batch,
}


def short_call(controller: Controller, mode: Mode) -> Callable[..., Any]:
    """Returns the method of a model that runs one batch.

    Args:
        controller: of the model.
        mode: which of the three.
    """
    model = controller.model
    stock = getattr(model, NAMES[mode])
    if getattr(type(model), NAMES[mode]) is not getattr(keras.Model, NAMES[mode]):
        return stock

    def on_batch(*args: Any, **kwargs: Any) -> Any:
        function = _function(controller, mode)
        given = None if function is None else _GIVEN[mode](*args, **kwargs)
        if function is None or given is None or not _is_simple(given):
            return stock(*args, **kwargs)
        results = _run(controller.model, mode, function, given.batch)
        if mode is Mode.PREDICT:
            return jax.tree.map(np.array, results)
        return reported_logs(controller.model, results, given.return_dict)

    return on_batch


def _function(controller: Controller, mode: Mode) -> LoopFunction | None:
    """Returns the function of a model for which nothing is left to build; None without one."""
    function = controller.functions.compiled.get(mode)
    if controller.is_running or not isinstance(function, LoopFunction):
        return None
    is_current = getattr(controller.model, f"{mode.value}_function") is function
    return function if is_current and function.takes_single_batches else None


def _is_simple(given: _Given) -> bool:
    leaves = jax.tree.leaves(given.batch)
    return given.is_whole and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)


def _run(model: keras.Model, mode: Mode, function: LoopFunction, batch: ArrayTree) -> ArrayTree:
    if mode is not Mode.PREDICT and REPORTS_BATCH:
        model.reset_metrics()
    variables = {role: variables_of(model, role) for role in ROLES[mode]}
    values = {role: tuple(map(stored_value, group)) for role, group in variables.items()}
    results, state = function.run_batch(State(**values), batch)
    for role, group in variables.items():
        put_values(group, getattr(state, role))
    return results
