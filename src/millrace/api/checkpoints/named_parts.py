"""The parts of an own loop: its objects by name, generators, and values.

save_checkpoint("run", step, model=model, metrics=[loss, accuracy], queue=infeed)

model          variables, by role        queue         position in the data
metrics[0]     variables                 generators, and objects with get_state() and set_state():
metrics[1]     variables                 their state

A variable that several of them have is saved once, with the first one.
"""

import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import numpy as np

from millrace._compat.keras_loops import loop_state
from millrace._compat.torch_loader import has_state
from millrace.api.checkpoints.owners import VariableOwner
from millrace.api.checkpoints.parts import Comparison, Part, SavedTraining, group
from millrace.api.own_loops.copies import copies_to_save, put_saved
from millrace.base.checkpoints.object_state import generator_state, set_generator
from millrace.base.checkpoints.random_state import (
    random_state,
    set_random_state,
    set_seeds,
    shared_seeds,
)
from millrace.errors import CheckpointError
from millrace.programs.feeds.infeed_queue import InfeedQueue
from millrace.programs.taps.outfeed_queue import OutfeedQueue


class NamedParts:
    """The parts of an own loop."""

    def __init__(
        self, objects: Mapping[str, object], values: MutableMapping[str, Any] | None = None
    ):
        """Finds variables, queues and states.

        Args:
            objects: models, layers, optimizers, metrics, variables, queues, generators, and lists
                and dicts of these.
            values: further ones, by name; None where the caller takes none.

        Raises:
            CheckpointError: for any other object, and for a model that fit is training.
        """
        self.owners: dict[str, VariableOwner] = {}  # of variables
        self.infeeds: dict[str, InfeedQueue] = {}
        self.outfeeds: dict[str, OutfeedQueue] = {}
        self._states: dict[str, Part] = {}
        for name, value in objects.items():
            self._add(name, value)
        self.variables: dict[str, list[keras.Variable]] = {}  # by owner and role
        self._find_variables()
        owners = {name: each.part() for name, each in self.owners.items()}
        outfeeds = {n: Part(n, queue.unread, queue.put_back) for n, queue in self.outfeeds.items()}
        self.all = (
            group("infeed queue", {n: _position(n, queue) for n, queue in self.infeeds.items()}),
            group("object", owners),
            group("outfeed queue", outfeeds),
            group("state", self._states),
            _values_part(values),
        )

    def build(self, saved: SavedTraining, comparison: Comparison) -> None:
        """Builds objects as they were, since loops build theirs in the first call; compares them.

        Raises:
            CheckpointError: if one cannot be built, or its variables differ.
        """
        facts = saved.facts["object"]
        while unbuilt := [each for each in self.owners.values() if each.is_unbuilt(facts)]:
            layers_first = min(unbuilt, key=lambda owner: owner.is_optimizer)
            layers_first.build(facts, comparison)
            self._find_variables()
        for name, owner in self.owners.items():
            owner.check_variables(facts[name], comparison)

    def bring_to_positions(self, saved: SavedTraining, comparison: Comparison) -> bool:
        """Brings infeed queues to their positions.

        Returns:
            Whether data draws from the random generators that all share, which then are where they
            have to be.

        Raises:
            CheckpointError: if the elements are other ones, or fewer.
        """
        draws = False
        for name, queue in self.infeeds.items():
            with _naming(name, comparison):
                draws |= queue.restore(saved.values["infeed queue"][name])
        return draws

    def _find_variables(self) -> None:
        self.variables.clear()
        seen: set[int] = set()
        for owner in self.owners.values():
            owner.find_variables(seen, self.variables)
            self.variables.update(owner.variables)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, list | tuple):
            for index, each in enumerate(value):
                self._add(f"{name}[{index}]", each)
        elif isinstance(value, dict):
            for key, each in value.items():
                self._add(f"{name}[{key!r}]", each)
        elif isinstance(value, OutfeedQueue):
            self.outfeeds[name] = value
        elif isinstance(queue := getattr(value, "queue", value), InfeedQueue):  # an iterator's, too
            self.infeeds[name] = queue
        elif isinstance(value, keras.Variable | keras.random.SeedGenerator):
            self.owners[name] = VariableOwner(name, value)
        elif hasattr(value, "variables"):
            if isinstance(value, keras.Model):
                _refuse_running(name, value)
            self.owners[name] = VariableOwner(name, value)
            optimizer = getattr(value, "optimizer", None)
            if isinstance(value, keras.Model) and optimizer is not None:
                self.owners[f"{name}.optimizer"] = VariableOwner(f"{name}.optimizer", optimizer)
        elif has_state(value):
            self._states[name] = _state(name, value, value.get_state, value.set_state)
        elif isinstance(value, np.random.Generator | random.Random):
            get, put = partial(generator_state, value), partial(set_generator, value)
            self._states[name] = _state(name, value, get, put)
        else:
            raise CheckpointError(
                f"{name}={value!r} of type {type(value).__name__} cannot be saved as an object: "
                "these are models, layers, optimizers, metrics, variables, queues, generators, "
                f"and objects with get_state() and set_state(). Set values={{{name!r}: ...}} for "
                "numbers, arrays and texts."
            )


def _position(name: str, queue: InfeedQueue) -> Part:
    """The position of a queue in its data, to which it comes before anything is restored."""

    def check(facts: Any, values: Any, comparison: Comparison) -> None:
        del facts
        with _naming(name, comparison):
            queue.check_position(values, comparison.where)

    return Part(name, queue.position, lambda values: None, check=check)


def _state(name: str, owner: Any, get: Callable[[], Any], put: Callable[[Any], None]) -> Part:
    """The state of a generator, or of an object with `get_state` and `set_state`."""
    kind = type(getattr(owner, "bit_generator", owner)).__name__

    def check(facts: Any, values: Any, comparison: Comparison) -> None:
        del values
        if facts != kind:
            raise comparison.difference(name, facts, kind)

    return Part(name, get, put, lambda: kind, check)


def _values_part(values: MutableMapping[str, Any] | None) -> Part:
    """Values that the user has named."""
    own: MutableMapping[str, Any] = {} if values is None else values

    def check(facts: Any, saved: Any, comparison: Comparison) -> None:
        del facts
        if values is None:
            comparison.check_names("value", saved, [])

    return Part("values", lambda: dict(own), own.update, check=check)


def random_part(draws: bool = False) -> Part:
    """The generators of random numbers that all code shares, and copies of replicas of seeds.

    Where data draws from them, it has brought those of the host where they have to be.
    """

    def values() -> dict[str, Any]:
        seeds = {name: copies_to_save(seed) for name, seed in shared_seeds().items()}
        return {"states": random_state(), "seeds": seeds}

    def restore(values: Any) -> None:
        states, seeds = values["states"], values["seeds"]
        (set_seeds if draws else set_random_state)(states)
        for name, seed in shared_seeds().items():
            if name in seeds:
                put_saved(seed, states[name], seeds[name])

    return Part("random", values, restore)


@contextmanager
def _naming(name: str, comparison: Comparison) -> Iterator[None]:
    """Adds the name of a queue and the checkpoint to errors."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f"This training cannot continue from {comparison.where}: {name}: {error}. Nothing has "
            f"been changed but the position in the data. {comparison.advice}"
        ) from error


def _refuse_running(name: str, model: keras.Model) -> None:
    if loop_state(model) is not None:
        raise CheckpointError(
            f"{name} is being trained by fit, whose values are not in its variables. Set "
            "callbacks=[millrace.callbacks.Checkpoint(directory)] in fit."
        )
