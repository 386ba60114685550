"""Micro-batches that come as one: the batches of an update, one for each replica.

    data        4 rows  4 rows  4 rows | 4 rows  4 rows  2 rows     updates of three micro-batches
    one device  12 rows                | 10 rows
    2 replicas  6 rows  6 rows         | 5 rows  5 rows

Batches of one update have equal rows, so that their mean is the mean over rows. Where the rows of
the last one cannot be shared out among all replicas, as many as possible take part.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import jax
import numpy as np
from jax.experimental.sparse import JAXSparse

from millrace._compat.keras_data import DataAdapter, is_array_adapter, stacked
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError
from millrace.programs.feeds.iterator_adapter import UnknownSizeAdapter


class MergedAdapter(UnknownSizeAdapter):
    """Gives Keras the micro-batches of an update as one batch for each replica."""

    def __init__(self, adapter: DataAdapter, together: int, replicas: int):
        """Takes a data adapter.

        Args:
            adapter: of the micro-batches.
            together: batches of it in an update.
            replicas: among which the rows of an update are shared out.
        """
        self.adapter, self._together, self.replicas = adapter, together, replicas

    def __getattr__(self, name: str) -> Any:
        """Returns what Keras keeps with the adapter of a kind of data, such as its workers."""
        if name == "adapter":  # while it is copied
            raise AttributeError(name)
        return getattr(self.adapter, name)

    def merged(self, batches: Iterator[ArrayTree]) -> Iterator[ArrayTree]:
        """Yields merged batches; each micro-batch is copied before the next is drawn."""
        while True:
            drawn = [
                jax.tree.map(_copied, batch, is_leaf=_is_sparse)
                for batch in islice(batches, self._together)
            ]
            if not drawn:
                return
            whole = merge_batches(drawn)
            rows = max(len(leaf) for leaf in jax.tree.leaves(whole))
            parts = self._parts(rows)
            for part in range(parts):
                size = rows // parts
                yield jax.tree.map(lambda leaf: leaf[part * size : (part + 1) * size], whole)  # noqa: B023

    def get_numpy_iterator(self) -> Iterator[ArrayTree]:
        """Returns the batches of a pass."""
        return self.merged(iter(self.adapter.get_numpy_iterator()))

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[ArrayTree]:
        """Returns the batches of a pass, stacked where Keras asks for super-batches."""
        return stacked(self.merged(iter(self.adapter.get_jax_iterator())), super_batch)

    def on_epoch_begin(self) -> None:
        """Tells the data set."""
        self.adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Tells the data set."""
        self.adapter.on_epoch_end()

    @property
    def num_batches(self) -> int | None:
        """Batches of a pass; None where they depend on the rows of the last one."""
        number = self.adapter.num_batches
        if number is not None and self.replicas == 1:
            return -(-number // self._together)
        if number is None or not is_array_adapter(self.adapter):
            return None
        size: int = self.adapter.batch_size
        rows = (number - 1) * size + (self.adapter.partial_batch_size or size)
        updates, rest = divmod(rows, size * self._together)
        return updates * self.replicas + (self._parts(rest) if rest else 0)

    def _parts(self, rows: int) -> int:
        """Returns how many replicas share an update of so many rows."""
        return next(k for k in range(self.replicas, 0, -1) if rows % k == 0)


def merge_batches(batches: Sequence[ArrayTree]) -> ArrayTree:
    """Returns a batch with the rows of all `batches`.

    Raises:
        DataError: if they do not fit together.
    """
    try:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    except ValueError as error:
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(batch)] for batch in batches]
        raise DataError(
            f"synchronized_batch_statistics=True computes the micro-batches of an update as one "
            f"batch, and these differ in more than their rows: {shapes}. Pad them to one shape, or "
            "leave the option out."
        ) from error


def merged_adapter(adapter: DataAdapter, micro_batches: int, replicas: int) -> DataAdapter:
    """Returns an adapter of merged batches.

    Args:
        adapter: of micro-batches; of arrays, it yields as many of them as one already.
        micro_batches: of one replica in an update.
        replicas: their number.
    """
    of_arrays = is_array_adapter(adapter)
    merged = MergedAdapter(adapter, replicas * (1 if of_arrays else micro_batches), replicas)
    if of_arrays and merged.num_batches == adapter.num_batches and not adapter.partial_batch_size:
        return adapter
    return adapter if of_arrays and replicas == 1 else merged


def inner_adapter(adapter: Any) -> Any:
    """Returns the adapter of micro-batches behind one of merged batches, or `adapter` itself."""
    return adapter.adapter if isinstance(adapter, MergedAdapter) else adapter


def _is_sparse(leaf: object) -> bool:
    return isinstance(leaf, JAXSparse)


def _copied(leaf: Any) -> np.ndarray:
    if _is_sparse(leaf):
        raise DataError(
            "synchronized_batch_statistics=True computes the micro-batches of an update as one "
            "batch, and a batch of the data has a sparse array. Make it dense, or leave the option "
            "out and set a larger batch_size."
        )
    return np.array(leaf)
