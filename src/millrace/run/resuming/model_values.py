"""The values of a model, of its optimizer and of its metrics, and what they belong to."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_loops import loop_state
from millrace.base.checkpoints.plain_values import host_copy
from millrace.errors import CheckpointError
from millrace.programs.plan import Mode
from millrace.run.fit.controller import Controller
from millrace.run.processes.agreement import own_copy

METRIC_PARTS = "metric of each replica"
ROLES = ("trainable", "non_trainable", "optimizer", "metric")
MODEL_ADVICE = (
    "Build and compile the model as it was, or name another directory in Checkpoint(directory) to "
    "begin a new training."
)


def variables_of(model: keras.Model) -> dict[str, list[keras.Variable]]:
    """Returns the variables of a model by role, in the order of the loop's state."""
    optimizer: Any = model.optimizer
    return {
        "trainable": list(model.trainable_variables),
        "non_trainable": list(model.non_trainable_variables),
        "optimizer": [] if optimizer is None else list(optimizer.variables),
        "metric": list(model.metrics_variables),
    }


def values_of(controller: Controller, roles: Sequence[str] = ROLES) -> dict[str, list[np.ndarray]]:
    """Copies values to the host; waits for the device, and with several processes for all."""
    model, functions = controller.model, controller.functions
    state: dict[str, list[Any]] | None = loop_state(model)
    if state is None:  # the variables have whole values
        own = variables_of(model)
        state = {role: [variable.value for variable in own[role]] for role in roles}
    else:
        state = {role: list(functions.gather(role, state.get(role, []))) for role in roles}
    for value in jax.tree.leaves(state):
        if isinstance(value, jax.Array) and value.is_fully_addressable:
            value.copy_to_host_async()
    values = {role: [host_copy(own_copy(value)) for value in state[role]] for role in roles}
    if "metric" in roles:
        values[METRIC_PARTS] = metric_parts_of(controller)
    return values


def metric_parts_of(controller: Controller) -> list[np.ndarray]:
    """Copies the metrics of each replica in a running fit; none if a failure has consumed them."""
    training = controller.functions.training  # not what runs: a callback may have evaluated
    parts = [] if training is None else training.metric_parts()
    if any(part.is_deleted() for part in parts):
        return []
    return [host_copy(own_copy(part)) for part in parts]


def put_values(
    model: keras.Model,
    values: Mapping[str, list[np.ndarray]],
    with_metrics: bool = True,
    before: Mapping[int, object] = MappingProxyType({}),
) -> dict[int, object]:
    """Assigns values to the variables of a model for which `check_same_model` found no difference.

    Args:
        model: gets the values.
        values: by role.
        with_metrics: False where an epoch begins, which metrics begin at zero.
        before: returned by an earlier call with the same values: variables that still have them
            are left as they are.

    Returns:
        The value of each variable by its `id`.
    """
    assigned: dict[int, object] = {}
    for role, variables in variables_of(model).items():
        same = _layout(variables) == _layout(values.get(role, []))
        if role == "metric" and not (with_metrics and same):
            continue  # other metrics begin at zero, too
        for variable, value in zip(variables, values[role], strict=True):
            if before.get(id(variable)) is not variable.value:
                variable.assign(value)
            assigned[id(variable)] = variable.value
    return assigned


def facts_of(model: keras.Model) -> dict[str, Any]:
    """Returns what a model and its optimizer are, to be compared when the training continues."""
    optimizer = model.optimizer
    return {
        "layers": [type(layer).__name__ for layer in model.layers],
        "variables": {
            role: variable_facts(variables) for role, variables in variables_of(model).items()
        },
        "optimizer": None if optimizer is None else optimizer_facts(optimizer),
    }


def variable_facts(variables: Sequence[keras.Variable]) -> list[Any]:
    """Returns the path, the shape and the dtype of each variable."""
    return [[v.path, list(v.shape), str(v.dtype)] for v in variables]


def check_same_model(saved: Mapping[str, Any], model: keras.Model, where: str) -> None:
    """Refuses a model or an optimizer other than the one that was saved.

    Args:
        saved: that `facts_of` has returned.
        model: that is to continue.
        where: of the checkpoint, for the message.

    Raises:
        CheckpointError: naming the first difference.
    """
    own, advice = facts_of(model), MODEL_ADVICE
    for role, kind in (("trainable", "weight"), ("non_trainable", "other variable of a layer")):
        check_variables(saved["variables"][role], own["variables"][role], kind, where, advice)
    if saved["optimizer"] is None or own["optimizer"] is None:
        if saved["optimizer"] != own["optimizer"]:
            raise difference("the optimizer", saved["optimizer"], own["optimizer"], where, advice)
        return
    check_optimizer(saved["optimizer"], own["optimizer"], "the optimizer", where, advice)
    variables = saved["variables"]["optimizer"], own["variables"]["optimizer"]
    check_variables(*variables, "optimizer variable", where, advice)


def has_same_metrics(saved: Mapping[str, Any], model: keras.Model) -> bool:
    """Whether the metrics of a model can hold the values that were saved."""
    own = facts_of(model)["variables"]["metric"]
    return [each[1:] for each in own] == [each[1:] for each in saved["variables"]["metric"]]


def put_weights_if_same(
    saved: Mapping[str, Any], values: Mapping[str, list[np.ndarray]], model: keras.Model
) -> None:
    """Assigns the weights of another call of fit, if this model has the same ones."""
    own = facts_of(model)["variables"]
    for role in ("trainable", "non_trainable"):
        if [each[1:] for each in own[role]] != [each[1:] for each in saved["variables"][role]]:
            return
    for role in ("trainable", "non_trainable"):
        for variable, value in zip(variables_of(model)[role], values[role], strict=True):
            variable.assign(value)


def options_of(controller: Controller) -> dict[str, str]:
    """Returns the options that change the numbers of an update, by name."""
    accumulation = controller.setup.accumulation
    setup = controller.setup
    merges = setup.merges(Mode.TRAIN)
    return {
        "gradient_accumulation_steps_per_replica x replicas": str(
            setup.update_steps(Mode.TRAIN) * merges
        ),
        **({"synchronized_batch_statistics": "True"} if merges > 1 else {}),
        "gradient_accumulation_reduction_method": str(accumulation.reduction.value),
    }


def check_optimizer(
    before: Mapping[str, Any], now: Mapping[str, Any], name: str, where: str, advice: str
) -> None:
    """Refuses an optimizer other than the one that was saved.

    Args:
        before: that `optimizer_facts` has returned.
        now: likewise.
        name: of the optimizer, for the message.
        where: of the checkpoint.
        advice: end of the message.

    Raises:
        CheckpointError: naming the first difference.
    """
    for key in dict.fromkeys(("class_name", *before, *now)):
        if before.get(key) != now.get(key):
            what = name if key == "class_name" else f"{key} of {name}"
            raise difference(what, before.get(key), now.get(key), where, advice)


def check_variables(
    saved: Sequence[Any], own: Sequence[Any], kind: str, where: str, advice: str
) -> None:
    """Refuses variables of other shapes and dtypes than those that were saved.

    Args:
        saved: that `variable_facts` has returned.
        own: likewise.
        kind: of the variables, for the message.
        where: of the checkpoint.
        advice: end of the message.

    Raises:
        CheckpointError: naming the first difference.
    """
    for before, now in zip(saved, own, strict=False):
        if before[1:] != now[1:]:
            raise difference(
                f"{kind} {now[0]!r}",
                f"{before[2]}{before[1]} of {before[0]!r}",
                f"{now[2]}{now[1]}",
                where,
                advice,
            )
    if len(saved) != len(own):
        raise difference(f"the number of {kind}s", len(saved), len(own), where, advice)


def difference(what: str, before: object, now: object, where: str, advice: str) -> CheckpointError:
    """Returns the error of a training that cannot continue from a checkpoint."""
    return CheckpointError(
        f"This training cannot continue from {where}: {what} is {now} here and was {before} there. "
        f"Nothing has been changed. {advice}"
    )


def optimizer_facts(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Returns the class and the settings of an optimizer, without what may differ."""
    config = {"class_name": type(optimizer).__name__, **optimizer.get_config()}
    return _without_names(json.loads(json.dumps(config, default=_plain)))


def _without_names(config: Any) -> Any:
    """Returns a configuration without what may differ: names, and rates that are variables."""
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


def _layout(values: list[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(value.shape), str(value.dtype)) for value in values]
