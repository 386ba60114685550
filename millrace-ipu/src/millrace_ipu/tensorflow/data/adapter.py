"""The adapter through which Keras's loops draw batches from a data set of this package.

fit(dataset) -> Keras asks for an adapter -> dataset.as_data_adapter() -> batches, their number
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import DataError
from millrace.extend import DataAdapter, stacked
from millrace_ipu._compat.arrays_and_data import let_data_adapt
from millrace_ipu.pytrees import ArrayTree


class DatasetAdapter(DataAdapter):
    """Gives Keras the batches of a data set, and their number."""

    remembers_passes = True  # read by millrace: data sets count their iterators to shuffle anew

    def __init__(
        self,
        dataset: Any,
        y: object = None,
        sample_weight: object = None,
        class_weight: Mapping[int, float] | None = None,
    ):
        """Takes the arguments of `fit`.

        Raises:
            DataError: for targets or weights beside the data set.
        """
        for name, value in (("y", y), ("sample_weight", sample_weight)):
            if value is not None:
                raise DataError(
                    f"fit() received a data set and {name}, which must be part of the data set's "
                    "elements: zip the two, Dataset.zip((x, y)), and leave the argument out."
                )
        self._dataset = dataset
        self._class_weight = class_weight

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Returns the batches as NumPy arrays."""
        batches = self._dataset.as_numpy_iterator()
        if self._class_weight is None:
            return batches
        return (_weighted(batch, self._class_weight) for batch in batches)

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        """Returns the batches as NumPy arrays, stacked where Keras asks for super-batches."""
        return stacked(self.get_numpy_iterator(), super_batch)

    @property
    def num_batches(self) -> int | None:
        """Number of batches; None if it is unknown or infinite."""
        number = int(self._dataset.cardinality())
        return None if number < 0 else number

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch; None if batches differ in size."""
        leaves = jax.tree.leaves(self._dataset.element_spec)
        shape = leaves[0].shape if leaves else None
        return shape[0] if shape else None

    # Unknown before the last batch is drawn.
    has_partial_batch = partial_batch_size = None  # type: ignore[override, assignment]


def _weighted(batch: ArrayTree, class_weight: Mapping[int, float]) -> tuple[Any, ...]:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    if sample_weight is not None or not isinstance(y, np.ndarray):
        raise DataError(
            "class_weight takes one array of class labels and no sample weights, and the data set "
            "gives something else. Weight the rows in dataset.map()."
        )
    classes = y.argmax(-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).round()
    weights = [class_weight.get(int(label), 1.0) for label in classes]
    return x, y, np.asarray(weights, "float32")


let_data_adapt()
