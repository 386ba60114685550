"""The arrays that a loop is given: what they are, and those that stay on the devices."""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from millrace._compat.keras_data import DataAdapter, get_data_adapter, is_array_adapter
from millrace.base.pytrees import ArrayTree
from millrace.programs.feeds.blocks import ResidentArrays
from millrace.run.fit.setup import Setup

_DATA = ("x", "y", "sample_weight")
_ROWS_CHECKED = 64  # at least, of each array, to tell data sets apart


def _within(data: object, limit: int) -> bool:
    sizes = [getattr(leaf, "nbytes", None) for leaf in jax.tree.leaves(data)]
    return None not in sizes and sum(map(int, sizes)) <= limit  # type: ignore[arg-type]


def whole_arrays(arguments: Mapping[str, Any], limit: int) -> ArrayTree:
    """Returns the arrays that the data adapter slices batches from; None if they exceed `limit`."""
    data: dict[str, Any] = {name: arguments.get(name) for name in _DATA}
    if not _within(data, limit):
        return None
    leaves = jax.tree.leaves(data)
    # One batch of everything: converted, packed and weighted as Keras does it.
    adapter = get_data_adapter(
        **data, batch_size=len(leaves[0]), class_weight=arguments.get("class_weight")
    )
    arrays = next(iter(adapter.get_jax_iterator()))
    is_dense = all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(arrays))
    return arrays if is_dense else None


def describe_arrays(arguments: Mapping[str, Any]) -> str:
    """Returns shapes and dtypes of arrays, with a checksum of some of their rows."""
    crc, shapes = 0, []
    for leaf in jax.tree.leaves([arguments.get(name) for name in _DATA]):
        shape = tuple(getattr(leaf, "shape", ()))
        shapes.append(f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(shape)}")
        if shape and all(shape) and isinstance(leaf, np.ndarray | jax.Array):
            rows = leaf[:: max(shape[0] // _ROWS_CHECKED, 1)]
            crc = zlib.crc32(
                np.ascontiguousarray(np.asarray(rows)).reshape(-1).view(np.uint8).data, crc
            )
    return f"{', '.join(shapes)}, checksum {crc:08x}"


class ResidentData:
    """Puts the arrays of a loop on the devices, if they may stay there."""

    def __init__(self, setup: Setup, adapter: DataAdapter, arguments: Mapping[str, Any]):
        self._setup = setup
        self._arguments = arguments
        # A single batch is itself all of the arrays.
        self._may = is_array_adapter(adapter) and adapter.num_batches != 1
        self._has_looked = False
        self._arrays: ResidentArrays | None = None

    def arrays(self, reads_all: bool) -> ResidentArrays | None:
        """Returns the arrays on the devices; None if they may not stay there.

        Args:
            reads_all: whether an epoch reads them from start to end.
        """
        if not self._has_looked:
            self._has_looked = True
            limit = self._setup.options.feed.max_resident_bytes
            if limit and reads_all and self._may:
                arrays = whole_arrays(self._arguments, limit)
                if arrays is not None:
                    self._arrays = ResidentArrays(arrays, self._setup.destination)
        return self._arrays
