"""The states of generators and data set with which passes through the data began.

A data set that has no position of its own is drawn again up to the one that was saved. It draws
the same batches if the generators and its own counters are as they were when the pass began; from
the position on, those count that were saved with it.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from millrace._compat.keras_data import DataAdapter, dataset_behind
from millrace._compat.keras_positions import adapter_epoch, set_adapter_epoch
from millrace._compat.keras_workers import has_read_ahead, read_ahead_again
from millrace._compat.torch_loader import has_state, parts_of_loader
from millrace.base.checkpoints.object_state import ObjectState
from millrace.base.checkpoints.plain_values import copied
from millrace.base.checkpoints.random_state import random_state, set_random_state
from millrace.base.interrupts import raise_if_interrupted
from millrace.programs.feeds.source_position import FastForward, TrackedBatches
from millrace.run.fit.checkpoint_places import EpochPosition


class PassStates:
    """The states with which the running pass of a fit, and the one before, began."""

    def __init__(self, adapter: DataAdapter | None):
        """Begins with no pass.

        Args:
            adapter: of the data of the fit.
        """
        self.adapter = adapter
        self._dataset = None if adapter is None else DataState(adapter)
        self._running: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None
        self._position: dict[str, Any] | None = None  # at the one up to which data is drawn again

    def begins(self) -> None:
        """Before a pass: takes the states with which it begins."""
        self._before = self._running
        self._running = {
            "random": random_state(),
            "dataset": None if self._dataset is None else copied(self._dataset.get()),
            "adapter_epoch": self._adapter_epoch(),
        }

    def values(self, position: EpochPosition) -> dict[str, Any]:
        """Returns the states to be saved with a position, by name."""
        at_begin = not position.pass_step and self._running is not None
        return {
            "pass_state": self._running,
            "pass_before": self._before,
            # Where a pass begins, an order may have been drawn since.
            "random": self._running["random"] if at_begin and self._running else random_state(),
            "adapter_epoch": self._adapter_epoch(),
        }

    def restore(self, saved: dict[str, Any], position: EpochPosition) -> None:
        """Sets the states from which the data continues, or is drawn again.

        Args:
            saved: that `values` has returned, among other values.
            position: that was saved with it.
        """
        self._running, self._before = saved["pass_state"], saved["pass_before"]
        adapter = self.adapter
        if adapter is not None and self._before is not None and has_read_ahead(adapter):
            self._set(self._before)
            read_ahead_again(adapter)
        self._set_position(saved)
        if not position.pass_step:
            if self._running is not None:
                self._set(self._running)
            self._set_position(saved)
        elif position.source is None or (adapter and dataset_behind(adapter) is not None):
            # The data set draws once more what it has drawn since the pass began.
            if self._running is not None:
                self._set(self._running)
            self._position = saved

    def has_drawn_order(self) -> None:
        """After the order of the rows has been drawn once more: sets the states at the position."""
        if (saved := self._take_position()) is not None:
            set_random_state(saved["random"])

    def skip(self, source: TrackedBatches, steps: int, places: Sequence[int]) -> bool:
        """Draws and drops batches, and sets the states at the position.

        Args:
            source: of the batches.
            steps: number of batches before the position.
            places: numbers of batches after which epochs of the same pass ended.

        Returns:
            Whether there are so many.
        """
        before = random_state()
        for place in places:
            if source.drawn <= place and _skip_to(source, place) and self.adapter is not None:
                self.adapter.on_epoch_end()
                self.adapter.on_epoch_begin()
        if not _skip_to(source, steps):
            return False
        if (saved := self._take_position()) is not None:
            set_random_state(saved["random"], unless_drawn_since=before)
        return True

    def repeat(self, source: TrackedBatches, asked: int) -> None:
        """Draws and drops the batches of a pass that is over; generators stay as they are.

        Args:
            source: of the batches.
            asked: number of batches to ask for, which may be one more than there are.
        """
        before = random_state()
        _skip_to(source, asked)
        set_random_state(before)

    def _take_position(self) -> dict[str, Any] | None:
        """Returns the states at the position, once: after the data has been drawn again."""
        saved, self._position = self._position, None
        if saved is not None and self.adapter is not None:
            set_adapter_epoch(self.adapter, saved["adapter_epoch"])
        return saved

    def _set(self, state: dict[str, Any]) -> None:
        set_random_state(state["random"])
        if self.adapter is not None:
            set_adapter_epoch(self.adapter, state["adapter_epoch"])
        if self._dataset is not None:
            self._dataset.set(state["dataset"])

    def _set_position(self, saved: dict[str, Any]) -> None:
        set_random_state(saved["random"])
        if self.adapter is not None:
            set_adapter_epoch(self.adapter, saved["adapter_epoch"])

    def _adapter_epoch(self) -> int | None:
        return None if self.adapter is None else adapter_epoch(self.adapter)


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
        self._owner: Any = dataset_behind(adapter)
        self._generators, self._samplers = parts_of_loader(self._owner)
        attributes = self._owner
        if self._samplers:
            attributes = None if self._owner.num_workers else self._owner.dataset
        has_methods = self._owner is not None and not self._samplers and has_state(self._owner)
        self._methods = self._owner if has_methods else None
        has_attributes = attributes is not None and not has_methods
        self._attributes = ObjectState(attributes) if has_attributes else None

    def get(self) -> dict[str, Any]:
        """Returns the state as plain values and arrays."""
        return {
            "methods": None if self._methods is None else self._methods.get_state(),
            "attributes": {} if self._attributes is None else self._attributes.changes(),
            "generators": [each.get_state().numpy().copy() for each in self._generators],
            "samplers": [each.epoch for each in self._samplers if hasattr(each, "epoch")],
        }

    def set(self, state: Mapping[str, Any]) -> None:
        """Sets a state that `get` has returned."""
        if self._methods is not None:
            self._methods.set_state(state["methods"])
        if self._attributes is not None:
            self._attributes.restore(state["attributes"])
        for generator, values in zip(self._generators, state["generators"], strict=False):
            torch: Any = sys.modules["torch"]  # which has made the generator
            generator.set_state(torch.from_numpy(np.array(values)))
        samplers = [each for each in self._samplers if hasattr(each, "epoch")]
        for sampler, epoch in zip(samplers, state["samplers"], strict=False):
            sampler.epoch = epoch
