"""The values of a model that fit trains, by role, and of its metrics."""

import logging
from typing import Any

import numpy as np

from millrace._compat.keras_loops import loop_state, variables_of
from millrace.api.checkpoints.parts import Comparison
from millrace.api.checkpoints.variables import (
    check_optimizer,
    check_variables,
    host_copies,
    layout,
    optimizer_facts,
    put,
    variable_facts,
)
from millrace.programs.plan import Mode
from millrace.run.fit.controller import Controller

logger = logging.getLogger("millrace")

WEIGHTS, OPTIMIZER, METRIC = ("trainable", "non_trainable"), "optimizer", "metric"
ROLES = (*WEIGHTS, OPTIMIZER)
METRIC_PARTS = "metric of each replica"


def _taken(controller: Controller, role: str) -> list[np.ndarray]:
    """Copies the values of a role to the host, from the running loop if there is one."""
    state = loop_state(controller.model)
    if state is None:  # the variables have whole values
        return host_copies([each.value for each in variables_of(controller.model, role)])
    return host_copies(list(controller.functions.gather(role, state.get(role, []))))


class ModelValues:
    """The weights, the other variables of layers, and the optimizer."""

    def __init__(self, controller: Controller):
        self._controller, self._model = controller, controller.model
        self._assigned: dict[int, object] = {}  # values of variables when they were restored

    def facts(self) -> dict[str, Any]:
        """Returns the variables by role, and the settings of the optimizer."""
        optimizer = self._model.optimizer
        return {
            "variables": {role: variable_facts(variables_of(self._model, role)) for role in ROLES},
            "optimizer": None if optimizer is None else optimizer_facts(optimizer),
        }

    def get(self) -> dict[str, list[np.ndarray]]:
        """Copies the values to the host by role; waits for the device, and for all processes."""
        return {role: _taken(self._controller, role) for role in ROLES}

    def check(self, facts: Any, values: Any, comparison: Comparison) -> None:
        """Refuses another model or optimizer: raises the first difference."""
        del values
        kinds = {"trainable": "weight", "non_trainable": "other variable of a layer"}
        for role, kind in kinds.items():
            own = variables_of(self._model, role)
            check_variables(facts["variables"][role], own, kind, comparison)
        before, now = facts["optimizer"], self.facts()["optimizer"]
        if before is None or now is None:
            if before != now:
                raise comparison.difference("the optimizer", before, now)
            return
        check_optimizer(before, now, "the optimizer", comparison)
        own = variables_of(self._model, OPTIMIZER)
        check_variables(facts["variables"][OPTIMIZER], own, "optimizer variable", comparison)

    def put(self, values: Any) -> None:
        """Assigns the values, but to variables that still have them since the last time."""
        for role in ROLES:
            for variable, value in zip(variables_of(self._model, role), values[role], strict=True):
                if self._assigned.pop(id(variable), None) is not variable.value:
                    variable.assign(value)
                    self._assigned[id(variable)] = variable.value

    def put_weights_if_same(self, values: Any) -> None:
        """Assigns the weights of another call of fit, if this model has the same ones."""
        own = {role: variables_of(self._model, role) for role in WEIGHTS}
        if all(layout(own[role]) == layout(values[role]) for role in WEIGHTS):
            for role in WEIGHTS:
                put(own[role], values[role])


class MetricValues:
    """The metrics of the running epoch, of the model and of each replica."""

    def __init__(self, controller: Controller):
        self._controller, self._model = controller, controller.model

    def get(self) -> dict[str, list[np.ndarray]]:
        """Copies the values to the host."""
        training = self._controller.functions.training  # a callback may have evaluated since
        parts = [] if training is None else training.metric_parts()
        if any(part.is_deleted() for part in parts):  # a failure has consumed them
            parts = []
        return {METRIC: _taken(self._controller, METRIC), METRIC_PARTS: host_copies(parts)}

    def put(self, values: Any) -> bool:
        """Assigns the values, and tells whether the metrics are the same: others begin at zero."""
        own = variables_of(self._model, METRIC)
        is_same = layout(own) == layout(values[METRIC])
        if is_same:
            put(own, values[METRIC])
        return is_same

    def put_parts(self, values: Any) -> None:
        """Lets the next execution continue with the metrics of each replica."""
        training = self._controller.functions.training
        if values[METRIC_PARTS] and training is not None:
            training.resume_metric_parts(values[METRIC_PARTS])


def options_of(controller: Controller) -> dict[str, str]:
    """Returns the options that change the numbers of an update, by name."""
    setup = controller.setup
    merges = setup.merges(Mode.TRAIN)
    steps = str(setup.update_steps(Mode.TRAIN) * merges)
    return {
        "gradient_accumulation_steps_per_replica x replicas": steps,
        **({"synchronized_batch_statistics": "True"} if merges > 1 else {}),
        "gradient_accumulation_reduction_method": str(setup.accumulation.reduction.value),
    }


def note_options(before: Any, now: dict[str, str]) -> None:
    """Logs options that change the numbers of later updates."""
    for name, value in now.items():
        if before.get(name, value) != value:
            logger.warning(
                "%s was %s when the checkpoint was written, and is %s now: later updates are not "
                "those of a training without a break.",
                name,
                before[name],
                value,
            )
