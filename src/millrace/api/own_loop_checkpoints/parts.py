"""The objects that a checkpoint of a loop is made of, by name.

save_checkpoint("run", step, model=model, metrics=[loss, accuracy], queue=infeed)

model          variables, by role        queue         position in the data
metrics[0]     variables                 generators, and objects with get_state() and set_state():
metrics[1]     variables                 their state

A variable that several of them have is saved once, with the first one.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from millrace._compat.keras_loops import loop_state
from millrace._compat.keras_optimizers import trained_by
from millrace.errors import CheckpointError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue
from millrace.run.resuming.model_values import optimizer_facts, variable_facts

Layer = keras.layers.Layer
Optimizer = keras.optimizers.Optimizer


class NamedParts:
    """The named objects of a loop."""

    def __init__(self, objects: Mapping[str, object]):
        """Finds variables, queues and states.

        Args:
            objects: models, layers, optimizers, metrics, variables, queues, generators, and lists
                and dicts of these.

        Raises:
            CheckpointError: for any other object, and for a model that fit is training.
        """
        self.owners: dict[str, Any] = {}  # of variables
        self.infeeds: dict[str, InfeedQueue] = {}
        self.outfeeds: dict[str, OutfeedQueue] = {}
        self.states: dict[str, Any] = {}  # objects with a state of plain values
        for name, value in objects.items():
            self._add(name, value)
        self.variables: dict[str, list[keras.Variable]] = {}
        seen: set[int] = set()
        for name, variables in self._found():
            new = {id(each): each for each in variables if id(each) not in seen}
            seen.update(new)
            self.variables[name] = list(new.values())

    def facts(self) -> dict[str, Any]:
        """Returns what the objects are, to be compared when the loop continues."""
        positions = {
            id(variable): [name, index]
            for name, variables in self.variables.items()
            for index, variable in enumerate(variables)
        }
        owners: dict[str, dict[str, Any]] = {}
        for name, owner in self.owners.items():
            facts: dict[str, Any] = {"kind": type(owner).__name__}
            owners[name] = facts
            if isinstance(owner, Optimizer):
                facts["settings"] = optimizer_facts(owner)
                trained = [positions.get(id(each)) for each in trained_by(innermost(owner))]
                facts["trains"] = None if None in trained else trained
            elif isinstance(owner, Layer):
                facts["build"] = _build_config(owner)
        return {
            "owners": owners,
            "variables": {name: variable_facts(own) for name, own in self.variables.items()},
            "others": {
                "infeed queue": sorted(self.infeeds),
                "outfeed queue": sorted(self.outfeeds),
                "state": {name: _kind(owner) for name, owner in self.states.items()},
            },
        }

    def _found(self) -> Iterator[tuple[str, list[keras.Variable]]]:
        for name, owner in self.owners.items():
            if isinstance(owner, keras.Variable):
                yield name, [owner]
            elif isinstance(owner, keras.random.SeedGenerator):
                yield name, [owner.state]
            elif isinstance(owner, Layer):
                yield f"{name} (trainable)", list(owner.trainable_variables)
                yield f"{name} (other)", list(owner.non_trainable_variables)
                if isinstance(owner, keras.Model):
                    yield f"{name} (metrics)", list(owner.metrics_variables)
            else:
                variables = owner.variables
                is_dict = isinstance(variables, Mapping)
                yield name, list(variables.values() if is_dict else variables)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            for index, each in enumerate(value):
                self._add(f"{name}[{index}]", each)
        elif isinstance(value, dict):
            for key, each in value.items():
                self._add(f"{name}[{key!r}]", each)
        elif isinstance(value, InfeedQueue):
            self.infeeds[name] = value
        elif isinstance(value, OutfeedQueue):
            self.outfeeds[name] = value
        elif isinstance(getattr(value, "queue", None), InfeedQueue):  # an iterator over one
            self.infeeds[name] = value.queue
        elif isinstance(value, keras.Variable | keras.random.SeedGenerator):
            self.owners[name] = value
        elif hasattr(value, "variables"):
            if isinstance(value, keras.Model):
                _refuse_running(name, value)
            self.owners[name] = value
            optimizer = getattr(value, "optimizer", None)
            if isinstance(value, keras.Model) and optimizer is not None:
                self.owners[f"{name}.optimizer"] = optimizer
        elif _is_generator(value) or (hasattr(value, "get_state") and hasattr(value, "set_state")):
            self.states[name] = value
        else:
            raise CheckpointError(
                f"{name}={value!r} of type {type(value).__name__} cannot be saved as an object: "
                "these are models, layers, optimizers, metrics, variables, queues, generators, "
                f"and objects with get_state() and set_state(). Set values={{{name!r}: ...}} for "
                "numbers, arrays and texts."
            )


def is_of_metrics(name: str) -> bool:
    """Whether variables are those of a model's metrics, which evaluations begin anew."""
    return name.endswith(" (metrics)")


def innermost(optimizer: Optimizer) -> Optimizer:
    """Returns the optimizer within wrappers."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return optimizer


def state_of(owner: Any) -> Any:
    """Returns the state of a generator, or of an object with `get_state`."""
    if isinstance(owner, np.random.Generator):
        return owner.bit_generator.state
    return owner.getstate() if isinstance(owner, random.Random) else owner.get_state()


def set_state(owner: Any, state: Any) -> None:
    """Sets a state that `state_of` has returned."""
    if isinstance(owner, np.random.Generator):
        owner.bit_generator.state = state
    elif isinstance(owner, random.Random):
        owner.setstate(state)
    else:
        owner.set_state(state)


def _is_generator(value: object) -> bool:
    return isinstance(value, np.random.Generator | random.Random)


def _kind(owner: Any) -> str:
    own = owner.bit_generator if isinstance(owner, np.random.Generator) else owner
    return type(own).__name__


def _build_config(layer: Layer) -> Any:
    return layer.get_build_config() if layer.built else None


def _refuse_running(name: str, model: keras.Model) -> None:
    if loop_state(model) is not None:
        raise CheckpointError(
            f"{name} is being trained by fit, whose values are not in its variables. Set "
            "callbacks=[millrace.callbacks.Checkpoint(directory)] in fit."
        )
