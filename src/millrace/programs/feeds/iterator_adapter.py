"""Iterators with `get_state()` and `set_state(state)` as data of `fit`, which Keras does not know.

A pass begins with `iter(data)`. If the data is an iterator that has ended and does not begin again
by itself, it is set to its first state.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_data import DataAdapter, stacked
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError


class UnknownSizeAdapter(DataAdapter):
    """A source of batches whose number and rows are unknown."""

    @property
    def num_batches(self) -> int | None:
        """Unknown."""
        return None

    @property
    def batch_size(self) -> None:
        """Unknown."""

    @property
    def has_partial_batch(self) -> None:
        """Unknown."""

    @property
    def partial_batch_size(self) -> None:
        """Unknown."""


class IteratorAdapter(UnknownSizeAdapter):
    """Gives Keras the batches of an iterator that has a state."""

    def __init__(self, source: Any):
        self.source = source
        self._first = copy.deepcopy(source.get_state())
        self._is_drawn = False

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Returns the batches of a pass."""
        self._is_drawn = True
        return _Pass(self.source, self._first)

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        """Returns the batches of a pass, stacked where Keras asks for super-batches."""
        return stacked(self.get_numpy_iterator(), super_batch)

    def give_back(self) -> None:
        """Sets the iterator to its first state: batches were drawn to build a model only."""
        if self._is_drawn:
            self.source.set_state(copy.deepcopy(self._first))
            self._is_drawn = False


class _Pass(Iterator[ArrayTree]):
    """The batches of one pass through an iterator."""

    def __init__(self, source: Any, first: Any):
        self._source, self._first = source, first
        self._batches = iter(source)
        self._drawn = 0

    def __next__(self) -> ArrayTree:
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._drawn:
                raise
            self._set(copy.deepcopy(self._first))
            batch = next(self._batches)
        self._drawn += 1
        if isinstance(batch, list):
            batch = tuple(batch)
        return jax.tree.map(_as_array, batch)

    def get_state(self) -> dict[str, Any]:
        """Returns the state after the batches that were drawn."""
        return {"drawn": self._drawn, "state": self._source.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues after the batches that were drawn when `get_state` has returned a state."""
        self._drawn = state["drawn"]
        self._set(state["state"])

    def _set(self, state: Any) -> None:
        self._source.set_state(state)
        if not hasattr(self._source, "__next__"):
            self._batches = iter(self._source)  # where it is now


def with_adapter(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the arguments of `fit`, `evaluate` or `predict` with data that Keras knows.

    Raises:
        DataError: for targets or weights beside an iterator.
    """
    x = arguments.get("x")
    if not _has_state(x):
        return arguments
    for name in ("y", "sample_weight", "class_weight"):
        if arguments.get(name) is not None:
            raise DataError(
                f"fit() received an iterator of type {type(x).__name__} and {name}. Let the "
                f"iterator yield (inputs, targets, sample_weights), and leave {name} out."
            )
    return {**arguments, "x": IteratorAdapter(x)}


def _has_state(x: object) -> bool:
    names = ("__iter__", "get_state", "set_state")
    is_known = isinstance(x, keras.utils.PyDataset | DataAdapter) or hasattr(x, "as_data_adapter")
    return not is_known and all(callable(getattr(x, name, None)) for name in names)


def _as_array(value: Any) -> Any:
    return value if isinstance(value, np.ndarray | jax.Array) else np.asarray(value)
