"""An object of an own loop that has variables: a model, a layer, an optimizer, a metric, ..."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from millrace._compat.keras_optimizers import trained_by, wrapped_chain
from millrace.api.checkpoints.parts import Comparison, Part
from millrace.api.checkpoints.variables import (
    check_optimizer,
    check_variables,
    host_copies,
    layout,
    optimizer_facts,
    variable_facts,
)
from millrace.api.own_loops.copies import copies_to_save, put_saved
from millrace.errors import CheckpointError

Layer = keras.layers.Layer
Optimizer = keras.optimizers.Optimizer

_METRICS = " (metrics)"  # which evaluations make anew


class VariableOwner:
    """The variables of one object, by role, with the copies that replicas have of them."""

    def __init__(self, name: str, owner: Any):
        self.name, self._owner = name, owner
        self.variables: dict[str, list[keras.Variable]] = {}
        self._all: Mapping[str, list[keras.Variable]] = {}  # of all objects
        self.is_optimizer = isinstance(owner, Optimizer)

    def find_variables(self, seen: set[int], of_all: Mapping[str, list[keras.Variable]]) -> None:
        """Finds the variables that none of those before has seen, and keeps those of all."""
        self._all, self.variables = of_all, {}
        for name, variables in self._found():
            new = {id(each): each for each in variables if id(each) not in seen}
            seen.update(new)
            self.variables[name] = list(new.values())

    def _found(self) -> Iterator[tuple[str, list[keras.Variable]]]:
        name, owner = self.name, self._owner
        if isinstance(owner, keras.Variable):
            yield name, [owner]
        elif isinstance(owner, keras.random.SeedGenerator):
            yield name, [owner.state]
        elif isinstance(owner, Layer):
            yield f"{name} (trainable)", list(owner.trainable_variables)
            yield f"{name} (other)", list(owner.non_trainable_variables)
            if isinstance(owner, keras.Model):
                yield f"{name}{_METRICS}", list(owner.metrics_variables)
        else:
            variables = owner.variables
            yield name, list(variables.values() if isinstance(variables, Mapping) else variables)

    def facts(self) -> dict[str, Any]:
        """Returns the class, the variables, the settings, and what it takes to build the object."""
        facts: dict[str, Any] = {
            "kind": type(self._owner).__name__,
            "variables": {role: variable_facts(own) for role, own in self.variables.items()},
        }
        if self.is_optimizer:
            facts["settings"] = optimizer_facts(self._owner)
            facts["trains"] = self._trained()
        elif isinstance(self._owner, Layer):
            facts["build"] = self._owner.get_build_config() if self._owner.built else None
        return facts

    def _trained(self) -> list[list[Any]] | None:
        """Returns the places of the variables that an optimizer trains; None if one has none."""
        places = {
            id(variable): [name, index]
            for name, variables in self._all.items()
            for index, variable in enumerate(variables)
        }
        trained = trained_by(self._innermost)
        found = [places[id(each)] for each in trained if id(each) in places]
        return found if len(found) == len(trained) else None

    @property
    def _innermost(self) -> Optimizer:
        """The optimizer within wrappers."""
        *_, optimizer = wrapped_chain(self._owner)
        return optimizer

    def part(self) -> Part:
        """Returns the object as a part of the training."""
        return Part(self.name, self.get, self.put, self.facts, self.check, is_model=True)

    def get(self) -> dict[str, Any]:
        """Returns the values by role, and those of all replicas where they differ."""
        everything = self.variables.items()
        return {
            "variables": {n: host_copies([v.value for v in own]) for n, own in everything},
            "copies": {n: [copies_to_save(v) for v in own] for n, own in everything},
        }

    def check(self, facts: Any, values: Any, comparison: Comparison) -> None:
        """Refuses an object of another class, or an optimizer with other settings."""
        del values
        now = self.facts()
        if "settings" in now and "settings" in facts:
            check_optimizer(facts["settings"], now["settings"], self.name, comparison)
        elif facts["kind"] != now["kind"]:
            raise comparison.difference(self.name, facts["kind"], now["kind"])

    def check_variables(self, facts: Any, comparison: Comparison) -> None:
        """Refuses variables of other shapes, when the object is built."""
        for role, saved in facts["variables"].items():
            if not role.endswith(_METRICS):
                own = self.variables.get(role, [])
                check_variables(saved, own, f"variable of {role}", comparison)

    def put(self, values: Any) -> None:
        """Assigns the values; metrics that are other ones begin at zero."""
        for role, variables in self.variables.items():
            saved = values["variables"].get(role, [])
            if role.endswith(_METRICS) and layout(saved) != layout(variables):
                continue
            copies = values["copies"].get(role, [])
            for variable, value, own in zip(variables, saved, copies, strict=True):
                put_saved(variable, value, own)

    def is_unbuilt(self, facts: Mapping[str, Any]) -> bool:
        """Whether the object was built when it was saved, and is not built here.

        Args:
            facts: of all objects, by name.
        """
        saved = facts[self.name]
        if self.is_optimizer:
            return saved.get("trains") != [] and not self._innermost.built
        return isinstance(self._owner, Layer) and bool(saved["build"]) and not self._owner.built

    def build(self, facts: Mapping[str, Any], comparison: Comparison) -> None:
        """Builds the object as it was.

        Raises:
            CheckpointError: if it cannot be built.
        """
        owner, saved = self._owner, facts[self.name]
        try:
            if self.is_optimizer:
                owner.build([self._all[name][index] for name, index in saved["trains"]])
            else:
                owner.build_from_config(saved["build"])
            is_built = bool(owner.built)
        except Exception as error:  # of layers of the user's own, of any kind
            raise self._not_built(comparison) from error
        if not is_built:
            raise self._not_built(comparison)

    def _not_built(self, comparison: Comparison) -> CheckpointError:
        argument = "model.trainable_variables" if self.is_optimizer else "input_shape"
        return CheckpointError(
            f"This training cannot continue from {comparison.where}: {self.name} was built there, "
            "is not built here, and cannot be built from what was saved. Nothing has been changed. "
            f"Call {self.name}.build({argument}) before restore_checkpoint()."
        )
