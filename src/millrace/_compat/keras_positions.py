"""Private Keras: positions in its data sources. Checked on keras 3.13.0, 3.14.0 and 3.15.1.

`tracked_source`     the batches of a pass, with the state of what they are drawn from.
`remembers_passes`   whether the next pass depends on those before it.
`adapter_epoch`      by which Keras shuffles, from 3.16 on.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np

from millrace._compat.keras_data import DataAdapter, is_array_adapter, tensorflow_dataset
from millrace._compat.tensorflow_dataset import RememberingDataset
from millrace._compat.torch_loader import LoaderBatches, has_state
from millrace.base.pytrees import ArrayTree


def tracked_source(
    adapter: DataAdapter,
) -> tuple[Iterator[ArrayTree], tuple[Callable[[], Any], Callable[[Any], None]] | None]:
    """Returns the batches of a new pass, and functions that get and set the state of their source.

    States come from the iterators of Grain and of tf.data, from torch's loaders with a
    `state_dict`, and from data sets with `get_state` and `set_state`. None is for all others.
    """
    private: Any = adapter
    if is_array_adapter(adapter):
        return _ArrayBatches(private), None
    if (dataset := tensorflow_dataset(adapter)) is not None:
        if not isinstance(dataset, RememberingDataset):
            private._dataset = dataset = RememberingDataset(dataset)
        dataset.begin()
        return iter(private.get_jax_iterator()), (dataset.get_state, dataset.set_state)
    own = getattr(private, "py_dataset", None)
    if own is not None and has_state(own) and getattr(private, "enqueuer", None) is None:
        if not isinstance(own, _GatedDataset):  # workers read ahead of what they hand over
            private.py_dataset = own = _GatedDataset(own)
        return _DatasetBatches(private, own), (own.get_state, own.set_state)
    batches = iter(private.get_jax_iterator())
    loader: Any = getattr(private, "_dataloader", None)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        own_batches = LoaderBatches(batches, loader)
        return own_batches, (own_batches.read_state, own_batches.write_state)
    for each in (private, batches):
        if has_state(each):
            return batches, (each.get_state, each.set_state)
    return batches, None


def remembers_passes(adapter: DataAdapter) -> bool:
    """Whether the batches of a pass depend on the passes before it, in a way that nothing shows.

    A generator does not begin again, and a tf.data set counts its iterators to shuffle anew. An
    adapter of another package says so by an attribute of this name.
    """
    return (
        type(adapter).__name__ == "GeneratorDataAdapter"
        or getattr(adapter, "remembers_passes", False)
        or tensorflow_dataset(adapter) is not None
    )


def goes_on(adapter: DataAdapter) -> bool:
    """Whether an evaluation continues where the one before ended: of a generator.

    Keras hands out its first two batches in each of them.
    """
    return type(adapter).__name__ == "GeneratorDataAdapter"


def adapter_epoch(adapter: DataAdapter) -> int | None:
    """Returns the epoch by which an adapter shuffles, from Keras 3.16 on; None if it has none."""
    return getattr(adapter, "_epoch", None)


def set_adapter_epoch(adapter: DataAdapter, epoch: int | None) -> None:
    """Sets the epoch by which an adapter shuffles, if it has one."""
    if epoch is not None and hasattr(adapter, "_epoch"):
        private: Any = adapter
        private._epoch = epoch


class _ArrayBatches(Iterator[ArrayTree]):
    """The batches of arrays, which are sliced when they are drawn and not when they are skipped."""

    def __init__(self, adapter: Any):
        draw = adapter._get_iterator
        # Slices nothing yet: each leaf of a batch is a function that does.
        adapter._get_iterator = lambda slice_, inputs: draw(partial(partial, slice_), inputs)
        try:
            self._batches = adapter.get_jax_iterator()
        finally:
            del adapter._get_iterator

    def __next__(self) -> ArrayTree:
        return jax.tree.map(lambda slice_: slice_(), next(self._batches))

    def skip(self) -> None:
        next(self._batches)


class _DatasetBatches(Iterator[ArrayTree]):
    """The batches of a PyDataset with a state, in the order in which Keras asks for them."""

    def __init__(self, adapter: Any, dataset: "_GatedDataset"):
        self._batches, self._dataset = iter(adapter.get_jax_iterator()), dataset

    def __next__(self) -> ArrayTree:
        return next(self._batches)

    def skip(self) -> None:
        self._dataset.is_read = False
        try:
            next(self._batches)
        finally:
            self._dataset.is_read = True


class _GatedDataset:
    """A PyDataset that makes no batch where one is skipped."""

    def __init__(self, dataset: Any):
        self.dataset, self.is_read = dataset, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index] if self.is_read else np.zeros(0)
