"""What a checkpoint of a fit is made of, the states of its callbacks among them."""

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.api.checkpoints.fit_data import FitData, ValidationData
from millrace.api.checkpoints.model_values import (
    MetricValues,
    ModelValues,
    note_options,
    options_of,
)
from millrace.api.checkpoints.parts import (
    Comparison,
    Part,
    SavedTraining,
    facts_of,
    kept_values,
    snapshot_of,
)
from millrace.api.checkpoints.progress import Progress
from millrace.base.checkpoints.manifest import FIT
from millrace.base.checkpoints.object_state import ObjectState
from millrace.base.checkpoints.stored import Snapshot
from millrace.base.pytrees import ArrayTree
from millrace.errors import CheckpointError
from millrace.run.fit.controller import Controller

logger = logging.getLogger("millrace")


ADVICE = (
    "Build and compile the model as it was, or name another directory in Checkpoint(directory) to "
    "begin a new training."
)
# What the validation of an epoch changes, and what Keras changes at the end of a fit.
_OF_VALIDATION = ("metrics", "callbacks", "validated", "data")
_OF_END = ("model", "metrics", "callbacks")


_STATELESS = (keras.callbacks.ProgbarLogger,)


class CallbackStates:
    """The callbacks of a fit that has begun, and what has changed in them since.

    A callback with `get_state()` and `set_state(state)` is saved by these: plain values and arrays.
    Of any other the attributes are saved that training changes.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]):
        """Begins.

        Args:
            callbacks: all of which have had their `on_train_begin`.
        """
        self._states = [
            (_kind(each), _state_of(each)) for each in callbacks if not isinstance(each, _STATELESS)
        ]
        self._has_warned = False

    def get(self) -> list[Any]:
        """Returns the class and the state of each callback."""
        return [{"kind": kind, "state": state.changes()} for kind, state in self._states]

    def set(self, values: Any, resets: bool = True) -> None:
        """Sets states that were saved, and warns once of callbacks that are new or gone.

        Callbacks are told apart by their class and their order.

        Args:
            values: that were saved.
            resets: whether attributes that had not changed when they were saved get their first
                values, too.
        """
        left = list(values)
        unknown = []
        for kind, state in self._states:
            own = next((each for each in left if each["kind"] == kind), None)
            if own is None:
                unknown.append(kind)
                continue
            left.remove(own)
            state.restore(own["state"], resets)
        for kind in () if self._has_warned else [*unknown, *(each["kind"] for each in left)]:
            logger.warning("The state of callback %s begins anew: it is new, or gone.", kind)
        self._has_warned = True


def _kind(callback: object) -> str:
    kind = type(callback)
    return f"{kind.__module__}.{kind.__qualname__}"


def _state_of(callback: keras.callbacks.Callback) -> ObjectState:
    is_csv = isinstance(callback, keras.callbacks.CSVLogger)
    return _CSVState(callback) if is_csv else ObjectState(callback, by_methods=True)


class _CSVState(ObjectState):
    """A logger, with the content of its file, which a new fit begins again."""

    def changes(self) -> dict[str, Any]:
        """Returns the content of the file, and the attributes that have changed."""
        if not self.owner.csv_file.closed:
            self.owner.csv_file.flush()
        with open(self.owner.filename, newline="") as file:
            return {"text": file.read(), "changes": super().changes()}

    def restore(self, changes: Any, resets: bool = True) -> None:
        """Writes the file again, unless the fit is over."""
        if not isinstance(changes, dict) or not isinstance(changes.get("text"), str):
            raise CheckpointError("The checkpoint holds no content of the file of a CSVLogger.")
        super().restore(changes.get("changes", {}), resets)
        file = self.owner.csv_file
        if file.closed:
            return
        file.seek(0)
        file.truncate()
        file.write(changes["text"])
        file.flush()
        self.owner.append_header = not changes["text"]


class FitParts:
    """The parts of one fit, and values that count in place of those that parts have by now."""

    def __init__(
        self,
        controller: Controller,
        callbacks: Sequence[keras.callbacks.Callback],
        progress: Progress,
    ):
        """Finds them, and what they are, when all callbacks know that the training has begun."""
        self.progress = progress
        self.model, self._metrics = ModelValues(controller), MetricValues(controller)
        self.data, self.validation = (
            FitData(controller.feeds.training),
            ValidationData(controller.model),
        )
        self.callbacks = CallbackStates(callbacks)
        options, setup = options_of(controller), controller.setup
        model, data = self.model, self.data
        parts = (
            Part("progress", progress.get, lambda values: None),  # compared before all others
            Part("options", lambda: options, functools.partial(note_options, now=options)),
            Part("stages", lambda: setup.stages.numbers, setup.stages.resume),
            Part("model", model.get, model.put, model.facts, model.check, is_model=True),
            Part("metrics", self._metrics.get, self._metrics.put, is_model=True),
            Part("callbacks", self.callbacks.get, self.callbacks.set),
            Part("data", data.get, data.put, lambda: data.facts, data.check),
            Part("validated", self.validation.get, self.validation.put),
        )
        self._parts = {part.name: part for part in parts}
        self._facts = facts_of(parts)  # now: a loop takes the values out of variables
        self.ended: dict[str, Any] = {}  # of an epoch that has only its validation left
        self.end: dict[str, Any] = {}  # of the end of the fit

    @property
    def step(self) -> int:
        """Steps of the training so far."""
        return self.progress.steps_before + self.data.epoch_step

    def begin_from(self, saved: SavedTraining) -> None:
        """Compares a checkpoint with the fit; puts back what is needed before an epoch begins.

        Raises:
            CheckpointError: if it is of another model, optimizer or data set.
        """
        path, values = saved.checkpoint.path, saved.values
        saved.check(self._parts.values(), Comparison(str(path), ADVICE))
        saved.warn_of_values()
        for name in ("options", "stages", "model"):
            self._parts[name].restore(values[name])
        if not self._metrics.put(values["metrics"]) and saved.checkpoint.manifest.epoch_step:
            logger.warning(
                "The metrics are other ones than in %s: those of its epoch begin at zero.", path
            )
        self.callbacks.set(values["callbacks"])

    def restore(self, saved: SavedTraining) -> None:
        """Puts back everything, when the callbacks have begun the epoch that continues.

        They may have changed some of it: a rate, when the epoch began.
        """
        values = saved.values
        self.model.put(values.pop("model"))  # the host needs it no more
        if saved.checkpoint.manifest.epoch_step:  # metrics begin at zero with an epoch
            self._metrics.put(values["metrics"])
            self._metrics.put_parts(values["metrics"])
        for name in ("callbacks", "data", "validated"):
            self._parts[name].restore(values[name])
        if values["ended"] is not None:
            self.ended = {name: values[name] for name in ("ended", *_OF_VALIDATION)}

    def note_ended(self, logs: ArrayTree) -> None:
        """After the last execution of an epoch: keeps what its validation changes."""
        if self.ended:  # resumed: its callbacks have seen its last execution before
            self.callbacks.set(self.ended["callbacks"])
            logs = self.ended["ended"]["logs"]
        logs = jax.tree.map(np.asarray, logs)
        self.ended = {"ended": {"logs": logs}, **self._kept(_OF_VALIDATION)}

    def note_end(self) -> None:
        """After the last step of a fit: keeps what Keras changes when it has ended."""
        self.end = self._kept(_OF_END)

    def values(self) -> dict[str, Any]:
        """Returns the values of all parts; waits for the device, and for all processes."""
        earlier = {"ended": None, **self.end, **self.ended}
        return {n: p.values() for n, p in self._parts.items() if n not in earlier} | earlier

    def snapshot(self, values: Mapping[str, Any]) -> Snapshot:
        """Returns what is written of such values."""
        return snapshot_of(
            self._parts.values(),
            self._facts,
            values,
            kind=FIT,
            step=self.step,
            epoch=self.progress.epoch,
            epoch_step=self.data.epoch_step,
        )

    def _kept(self, names: Sequence[str]) -> dict[str, Any]:
        return kept_values([self._parts[name] for name in names])
