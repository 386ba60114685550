"""The state of a data set where a pass through it begins: of generators, orders and counters."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from millrace._compat.keras_data import DataAdapter, dataset_behind
from millrace._compat.torch_loader import has_state, parts_of_loader
from millrace.base.checkpoints.object_state import ObjectState


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
