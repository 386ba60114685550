"""Private Keras: what its loops draw from. Checked on keras 3.13.0, 3.14.0 and 3.15.1.

`EpochIterator`   `fit`, `evaluate` and `predict` build one of these per call and draw executions
                  from it; nothing public decides what they draw.
`DataAdapter`     what an epoch iterator draws batches from; there is no public base class.
`get_data_adapter`, `is_array_adapter`   what Keras makes of `x`, in the order it would feed it.
`is_endless`      whether a data set says of itself that it never ends.
`stacked`         what Keras's own scan of several steps draws.
`let_data_adapt`  Keras knows data sets by a list of types; nothing public adds one to it.
"""

import abc
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from keras.src.backend.jax import trainer as _trainer
from keras.src.trainers.data_adapters import array_data_adapter, get_data_adapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from millrace._compat.patch_table import DATA_ADAPTER
from millrace._compat.patches import replace, unpatched
from millrace._compat.versions import keras_is, private

__all__ = [
    "DataAdapter",
    "EpochIterator",
    "epoch_order",
    "get_data_adapter",
    "is_array_adapter",
    "is_endless",
    "let_data_adapt",
    "stacked",
]

_StockEpochIterator = unpatched(_trainer.JAXEpochIterator)


class EpochIterator(_StockEpochIterator, abc.ABC):
    """Keras's epoch iterator, with what it gives out left to a subclass.

    Keras goes through `(begin, end, executions' iterator)` once per epoch. With `steps_per_epoch`,
    one pass through the data goes on over several epochs; without, each epoch is a pass. An epoch
    in which the data runs out ends the pass, too: `catch_stop_iteration` drops the iterator.
    """

    @abc.abstractmethod
    def executions(self) -> Iterator[tuple[int, int, Any]]:
        """Yields an epoch's first and last step of each execution, and what it draws from."""

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:  # type: ignore[override]
        self.data_adapter.on_epoch_begin()
        if self.steps_per_epoch is None or self._current_iterator is None:
            self.end_pass()
        yield from self.executions()
        self.data_adapter.on_epoch_end()

    def host_batches(self) -> Iterator[Any]:
        """Returns the data adapter's batches of this pass, in host memory."""
        if self._current_iterator is None:
            self._current_iterator = iter(self.data_adapter.get_jax_iterator())
        return self._current_iterator

    def end_pass(self) -> None:
        """Lets the next batch be the first of the data again."""
        self._current_iterator = None
        self._steps_seen = 0

    @property
    def steps_in_pass(self) -> int:
        """Steps that this pass has given out so far; `executions` counts them up."""
        return self._steps_seen

    @steps_in_pass.setter
    def steps_in_pass(self, steps: int) -> None:
        self._steps_seen = steps

    @property
    def pass_length(self) -> int | None:
        """Batches in one pass through the data; None until an unknown number has been found."""
        return self._num_batches

    @pass_length.setter
    def pass_length(self, batches: int) -> None:
        self._num_batches = batches

    def warn_of_missing_data(self) -> None:
        """Warns, in Keras's words, that an epoch had fewer batches than it was to have."""
        self._interrupted_warning()


def epoch_order(data: Any, rows: int, shuffle: bool | str) -> np.ndarray:
    """Returns the row numbers of one epoch in the order in which Keras would feed them.

    Keras shuffles row numbers, so numbers are what we let it feed. One batch of all of them draws
    the same permutation as many batches, and is a hundred times faster; where only batches are
    shuffled, many it is.

    Args:
        data: the adapter of the arrays that are fed. From Keras 3.16 on, it has the number that
            the order of its next epoch is drawn from; before, NumPy's generator decides.
        rows: how many the arrays have.
        shuffle: as `fit` takes it.
    """
    adapter: Any = get_data_adapter(
        x=np.arange(rows, dtype=np.int32),
        batch_size=data.batch_size if shuffle == "batch" else rows,
        shuffle=shuffle,  # type: ignore[arg-type]  # Keras takes "batch", too
    )
    if keras_is("3.16"):
        adapter._epoch = data._epoch
    return np.concatenate(
        [np.asarray(jax.tree.leaves(batch)[0]) for batch in adapter.get_jax_iterator()]
    )


def is_array_adapter(adapter: Any) -> bool:
    """Whether Keras slices batches out of arrays in memory."""
    return isinstance(adapter, array_data_adapter.ArrayDataAdapter)


def is_endless(adapter: Any) -> bool:
    """Whether the data set behind `adapter` says that it never ends.

    tf.data reports it as a cardinality of -1, a PyDataset by having no number of batches.
    """
    dataset = getattr(adapter, "_dataset", None)
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality):
        return int(cardinality()) == -1  # type: ignore[call-overload]
    return hasattr(adapter, "py_dataset") and adapter.num_batches is None


def stacked(batches: Iterator[Any], steps: int | None) -> Iterator[Any]:
    """Returns batches as Keras asks its adapters for them, from 3.16 on several at a time.

    Args:
        batches: of one pass.
        steps: how many are stacked to one; None is none.
    """
    return private("super_batch_iterator")(batches, steps) if steps else batches


def let_data_adapt() -> None:
    """Lets data that has a method `as_data_adapter` say what Keras draws from.

    The method is given the arguments of `fit`: `y`, `sample_weight` and `class_weight`.
    """

    def wrapper(original: Any) -> Any:
        def get_data_adapter(x: Any, *args: Any, **kwargs: Any) -> Any:
            adapt = getattr(x, "as_data_adapter", None)
            if adapt is None:
                return original(x, *args, **kwargs)
            return adapt(
                y=kwargs.get("y"),
                sample_weight=kwargs.get("sample_weight"),
                class_weight=kwargs.get("class_weight"),
            )

        return get_data_adapter

    replace(DATA_ADAPTER, wrapper)
