"""The position in the data, and the states of generators and data set that lead to it again.

A data set that has no position of its own is drawn again up to the one that was saved. It draws
the same batches if the generators and its own counters are as they were when the pass began; from
the position on, those count that were saved with it.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import keras
import numpy as np

from millrace._compat.keras_data import DataAdapter, dataset_behind
from millrace._compat.keras_loops import validation_epochs
from millrace._compat.keras_positions import adapter_epoch, goes_on, set_adapter_epoch
from millrace._compat.keras_workers import has_read_ahead, read_ahead_again
from millrace._compat.torch_loader import parts_of_loader
from millrace.api.checkpoints.parts import Comparison
from millrace.base.checkpoints.object_state import ObjectState
from millrace.base.checkpoints.plain_values import copied
from millrace.base.checkpoints.random_state import random_state, set_random_state
from millrace.base.interrupts import raise_if_interrupted
from millrace.errors import CheckpointError
from millrace.programs.feeds.merged_batches import inner_adapter
from millrace.programs.feeds.source_position import FastForward, SourceState, TrackedBatches
from millrace.run.fit.checkpoint_places import EpochPosition, ResumableEpochs


class FitData:
    """The data of a fit, with the states with which its running pass, and the one before, began."""

    def __init__(self, epochs: ResumableEpochs | None):
        self.epochs = epochs
        self.position: EpochPosition | None = None  # None while there is nothing to save
        self.facts = {} if epochs is None else epochs.facts()  # what identifies the data
        self._dataset = None if self._adapter is None else DataState(self._adapter)
        self._running: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._awaited: dict[str, Any] | None = None  # at the position, up to which it is drawn

    @property
    def _adapter(self) -> DataAdapter | None:
        return inner_adapter(getattr(self.epochs, "data_adapter", None))

    @property
    def epoch_step(self) -> int:
        """Steps of the running epoch so far."""
        return 0 if self.position is None else self.position.epoch_step

    def begins_pass(self) -> None:
        """Before a pass: takes the states with which it begins."""
        dataset = None if self._dataset is None else copied(self._dataset.get())
        self._before, self._running = self._running, {**self._now(), "dataset": dataset}

    def get(self) -> dict[str, Any]:
        """Returns the position, and the states."""
        position = self.position
        # Where a pass begins, an order may have been drawn since.
        at_begin = position is not None and not position.pass_step
        begun = {"random": self._running["random"]} if at_begin and self._running else {}
        return {
            "position": None if position is None else asdict(position),
            "pass_state": self._running,
            "pass_before": self._before,
            **self._now(),
            **begun,
        }

    def check(self, facts: Any, values: Any, comparison: Comparison) -> None:
        """Refuses other data, as far as both are known."""
        for name, now in self.facts.items():
            before = facts.get(name, "unknown")
            if before != now and "unknown" not in (before, now):
                raise CheckpointError(
                    f"This training cannot continue from {comparison.where}: {name} was {before} "
                    f"there and is {now} here. Nothing has been changed. Call fit with the same "
                    "data and batch_size, or name another directory in Checkpoint(directory)."
                )

    def put(self, values: Any) -> None:
        """Sets the states from which the data continues, or is drawn again."""
        position = position_of(values)
        self._running, self._before = values["pass_state"], values["pass_before"]
        adapter = self._adapter
        if adapter is not None and self._before is not None and has_read_ahead(adapter):
            self._set(self._before)
            read_ahead_again(adapter)
        self._set(values)
        if not position.pass_step:
            self._set(self._running)
            self._set(values)
        elif position.source is None or (adapter and dataset_behind(adapter) is not None):
            # The data set draws once more what it has drawn since the pass began.
            self._set(self._running)
            self._awaited = values

    def has_drawn_order(self) -> None:
        """After the order of the rows has been drawn once more: sets the states at the position."""
        if (saved := self._reached()) is not None:
            set_random_state(saved["random"])

    def skip(self, source: TrackedBatches, steps: int, places: Sequence[int]) -> bool:
        """Draws and drops batches, sets the states at the position; tells if there are so many."""
        before, adapter = random_state(), self._adapter
        for place in places:
            if source.drawn <= place and _skip_to(source, place) and adapter is not None:
                adapter.on_epoch_end()
                adapter.on_epoch_begin()
        if not _skip_to(source, steps):
            return False
        if (saved := self._reached()) is not None:
            set_random_state(saved["random"], unless_drawn_since=before)
        return True

    def _reached(self) -> dict[str, Any] | None:
        """Returns the states at the position, once: after the data has been drawn again."""
        saved, self._awaited = self._awaited, None
        if saved is not None and self._adapter is not None:
            set_adapter_epoch(self._adapter, saved["adapter_epoch"])
        return saved

    def _now(self) -> dict[str, Any]:
        adapter = self._adapter
        epoch = None if adapter is None else adapter_epoch(adapter)
        return {"random": random_state(), "adapter_epoch": epoch}

    def _set(self, state: dict[str, Any] | None) -> None:
        """Sets generators, and what else a state has."""
        if state is None:
            return
        set_random_state(state["random"])
        if self._adapter is not None:
            set_adapter_epoch(self._adapter, state["adapter_epoch"])
        if self._dataset is not None and "dataset" in state:
            self._dataset.set(state["dataset"])


def position_of(values: Any) -> EpochPosition:
    """Returns the position that the values of `FitData` have."""
    saved = values["position"]
    found = {each.name: saved[each.name] for each in fields(EpochPosition)}
    if (source := saved["source"]) is not None:
        found["source"] = SourceState(source["drawn"], source["state"])
    return EpochPosition(**found)


class ValidationData:
    """The batches that each validation has drawn so far, where its data goes on between them."""

    def __init__(self, model: keras.Model):
        self._model = model
        self._drawn: list[int] = []
        self._to_repeat: list[int] = []  # before the checkpoint, until they are drawn again

    def count(self) -> None:
        """Takes the numbers of batches from Keras, which forgets them at the end of fit."""
        epochs = validation_epochs(self._model)
        if epochs is not None and not self._to_repeat:
            self._drawn = epochs.drawn

    def get(self) -> list[int]:
        """Returns the numbers of batches."""
        self.count()
        return list(self._drawn)

    def put(self, values: Any) -> None:
        """Lets the next validation draw them again first."""
        self._drawn = self._to_repeat = list(values)

    def begins(self, epochs: ResumableEpochs) -> None:
        """Before an evaluation: draws and drops what the validations so far have drawn."""
        if not self._to_repeat or epochs is not validation_epochs(self._model):
            return
        epochs.drawn, self._to_repeat = self._to_repeat, []
        if goes_on(epochs.data_adapter):
            for steps in epochs.drawn:
                repeat(TrackedBatches(iter(epochs.data_adapter.get_jax_iterator())), steps)


def repeat(source: TrackedBatches, asked: int) -> None:
    """Draws and drops the batches of a pass that is over; generators stay as they are."""
    before = random_state()
    _skip_to(source, asked)
    set_random_state(before)


def _skip_to(source: TrackedBatches, steps: int) -> bool:
    """Returns whether there are so many batches, which it draws and drops."""
    progress = FastForward("batch", source.drawn, steps)
    while source.drawn < steps:
        raise_if_interrupted()
        if not source.skip():
            return False
        progress.has_drawn(source.drawn)
    return True


class DataState:
    """What a pass depends on beside the generators that all share.

    A PyDataset with `get_state()` and `set_state(state)` is saved by these. Of any other, and of
    the data set of a loader of torch without workers, the attributes are saved that change. Of a
    loader it is also the generators and the epoch of its samplers.
    """

    def __init__(self, adapter: DataAdapter):
        owner: Any = dataset_behind(adapter)
        self._generators, samplers = parts_of_loader(owner)
        self._samplers = [each for each in samplers if hasattr(each, "epoch")]
        attributes = owner if not samplers else None if owner.num_workers else owner.dataset
        has_own = attributes is not None
        self._own = ObjectState(attributes, by_methods=not samplers) if has_own else None

    def get(self) -> dict[str, Any]:
        """Returns the state as plain values and arrays."""
        return {
            "own": {} if self._own is None else self._own.changes(),
            "generators": [each.get_state().numpy().copy() for each in self._generators],
            "samplers": [each.epoch for each in self._samplers],
        }

    def set(self, state: Mapping[str, Any]) -> None:
        """Sets a state that `get` has returned."""
        if self._own is not None:
            self._own.restore(state["own"])
        for generator, values in zip(self._generators, state["generators"], strict=False):
            torch: Any = sys.modules["torch"]  # which has made the generator
            generator.set_state(torch.from_numpy(np.array(values)))
        for sampler, epoch in zip(self._samplers, state["samplers"], strict=False):
            sampler.epoch = epoch
