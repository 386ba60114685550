"""Private Keras: the sources from which its loops draw. Checked on keras 3.13.0, 3.14.0 and 3.15.1.

`EpochIterator`   `fit`, `evaluate` and `predict` build one of these per call and draw executions
                  from it; nothing public replaces it.
`DataAdapter`     the source of an epoch iterator's batches; there is no public base class.
`get_data_adapter`, `is_array_adapter`   the adapter that Keras makes of `x`, in its order of rows.
`is_endless`      whether a data set declares that it never ends.
`dataset_behind`, `tensorflow_dataset`   the data set of an adapter.
`spec_of_data`    tells data sets apart.
`stacked`         the batches that Keras's own scan of several steps draws.
"""

import abc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from keras.src.backend.jax import trainer as _trainer
from keras.src.trainers.data_adapters import array_data_adapter
from keras.src.trainers.data_adapters import get_data_adapter as get_data_adapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter as DataAdapter

from millrace._compat.keras_workers import remember_pools
from millrace._compat.patches import unpatched
from millrace._compat.tensorflow_dataset import RememberingDataset
from millrace._compat.versions import keras_is
from millrace._compat.versions import private as private_name
from millrace.base.pytrees import ArrayTree

BATCH_SIZE = 32  # rows of a batch of arrays, where `fit` is given no number

_StockEpochIterator = unpatched(_trainer.JAXEpochIterator)


class EpochIterator(_StockEpochIterator, abc.ABC):
    """Keras's epoch iterator, whose executions a subclass makes.

    Keras goes through `(begin, end, executions' iterator)` once per epoch. With `steps_per_epoch`,
    one pass through the data continues over several epochs; without, each epoch is a pass. An epoch
    in which the data runs out ends the pass, too: `catch_stop_iteration` drops the iterator.
    """

    @abc.abstractmethod
    def executions(self) -> Iterator[tuple[int, int, Any]]:
        """Yields the first and the last step of each execution of an epoch, and its source."""

    def before_epoch(self) -> None:
        """Is called before the data adapter learns that an epoch begins."""

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:  # type: ignore[override]
        if self.begins_pass:
            self.end_pass()
        self.before_epoch()
        self.between_epochs(self.data_adapter.on_epoch_begin)
        yield from self.executions()
        self.between_epochs(self.data_adapter.on_epoch_end)

    @abc.abstractmethod
    def between_epochs(self, tell: Callable[[], None]) -> None:
        """Calls `tell`, which tells the data set of the begin or the end of an epoch."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        remember_pools(self.data_adapter)

    def host_batches(self) -> Iterator[Any]:
        """Returns the data adapter's batches of this pass, in host memory."""
        if self._current_iterator is None:
            self._current_iterator = iter(self.data_adapter.get_jax_iterator())
        return self._current_iterator

    @property
    def begins_pass(self) -> bool:
        """Whether the next epoch begins with the first batch of the data."""
        return self.steps_per_epoch is None or self._current_iterator is None

    def end_pass(self) -> None:
        """Ends the pass: the next batch is the first of the data again."""
        self._current_iterator = None
        self._steps_seen = 0

    @property
    def steps_in_pass(self) -> int:
        """Steps of this pass so far; `executions` counts them."""
        return self._steps_seen

    @steps_in_pass.setter
    def steps_in_pass(self, steps: int) -> None:
        self._steps_seen = steps

    @property
    def pass_length(self) -> int | None:
        """Batches in one pass through the data; None while the number is not known."""
        return self._num_batches

    @pass_length.setter
    def pass_length(self, batches: int) -> None:
        self._num_batches = batches

    def warn_of_missing_data(self) -> None:
        """Warns, in Keras's words, that the data ran out before the end of an epoch."""
        self._interrupted_warning()


class EpochOrder:
    """The row numbers of each epoch of arrays, in the order in which Keras would feed the rows.

    Keras shuffles row numbers, so it is given row numbers to feed. One batch of all of them draws
    the same permutation as many batches, and is a hundred times faster. Where only batches are
    shuffled, there are as many batches as in the epoch.
    """

    def __init__(self, data: array_data_adapter.ArrayDataAdapter, rows: int, shuffle: bool | str):
        """Draws nothing yet.

        Args:
            data: the adapter of the arrays that are fed. From Keras 3.16 on, its `_epoch` decides
                the order of its next epoch; before, NumPy's generator does.
            rows: number of rows of the arrays.
            shuffle: as `fit` takes it.
        """
        self._data, self._rows = data, np.arange(rows, dtype=np.int32)
        self._adapter: Any = None
        if shuffle:
            self._adapter = get_data_adapter(
                x=self._rows,
                batch_size=data.batch_size if shuffle == "batch" else rows,
                shuffle=shuffle,  # type: ignore[arg-type]  # Keras takes "batch", too
            )

    def draw(self) -> np.ndarray:
        """Returns the row numbers of the next epoch."""
        if self._adapter is None:
            return self._rows
        if keras_is("3.16"):
            private: Any = self._data
            self._adapter._epoch = private._epoch
        batches = self._adapter.get_jax_iterator()
        return np.concatenate([np.asarray(jax.tree.leaves(batch)[0]) for batch in batches])


def is_array_adapter(adapter: object) -> bool:
    """Whether Keras slices batches out of arrays in memory."""
    return isinstance(adapter, array_data_adapter.ArrayDataAdapter)


def is_endless(adapter: DataAdapter) -> bool:
    """Whether the data set behind `adapter` declares that it never ends.

    An endless tf.data set has a cardinality of -1, an endless PyDataset no number of batches.
    """
    dataset = getattr(adapter, "_dataset", None)
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality):
        return int(cardinality()) == -1  # type: ignore[call-overload]
    return hasattr(adapter, "py_dataset") and adapter.num_batches is None


def dataset_behind(adapter: DataAdapter) -> Any:
    """Returns the PyDataset or the loader of torch from which an adapter draws, if it is one."""
    for name in ("py_dataset", "_dataloader"):
        if (dataset := getattr(adapter, name, None)) is not None:
            return dataset
    return None


def spec_of_data(adapter: DataAdapter) -> dict[str, str]:
    """Returns the class of a data set and what it says of its batches, where that is cheap."""
    private: Any = adapter
    facts = {}
    dataset = dataset_behind(adapter)
    for name in ("_dataset", "generator", "source"):
        dataset = getattr(private, name, None) if dataset is None else dataset
    if dataset is not None and not callable(dataset):
        facts["class of the data set"] = type(dataset).__qualname__
    spec = getattr(private, "_output_signature", None)
    if first := getattr(private, "_first_batches", None):
        spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), _dtype(leaf)), first[0]
        )
    elif (tf_dataset := tensorflow_dataset(adapter)) is not None:
        spec = tf_dataset.element_spec
    if spec is not None:
        facts["batches"] = ", ".join(
            f"{np.dtype(_dtype(leaf)).name}{list(leaf.shape)}" for leaf in jax.tree.leaves(spec)
        )
    return facts


def _dtype(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    return getattr(dtype, "as_numpy_dtype", dtype)


def tensorflow_dataset(adapter: DataAdapter) -> Any:
    """Returns the data set behind Keras's own adapter of tf.data."""
    dataset = getattr(adapter, "_dataset", None)
    is_keras = type(adapter).__module__.startswith("keras.")
    if isinstance(dataset, RememberingDataset):
        return dataset
    return dataset if is_keras and type(dataset).__module__.startswith("tensorflow.") else None


def stacked(batches: Iterator[ArrayTree], steps: int | None) -> Iterator[ArrayTree]:
    """Returns batches as Keras asks its adapters for them, from 3.16 on several at a time.

    Args:
        batches: of one pass.
        steps: number of batches that are stacked to one; None returns them as they are.
    """
    return private_name("super_batch_iterator")(batches, steps) if steps else batches
