"""`tf.data.Dataset`: a stream of elements, transformed step by step.

    Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32, drop_remainder=True).repeat()

Nothing is read before the iteration begins, and each iteration starts from the beginning. Elements
are NumPy arrays, in tuples and dicts. In the scope of an IPUStrategy `iter(dataset)` is for
compiled functions.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import keras
import numpy as np

from millrace.errors import DataError
from millrace.extend import DataAdapter, stacked, whole_number
from millrace_ipu._compat.arrays_and_data import let_data_adapt
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.data import sources, steps
from millrace_ipu.tensorflow.data.elements import (
    ElementSpec,
    call,
    mapped,
    mapped_spec,
    spec_of,
)
from millrace_ipu.tensorflow.data.elements import TensorSpec as TensorSpec
from millrace_ipu.tensorflow.data.elements import with_rows as spec_with_rows
from millrace_ipu.tensorflow.iterators import DeviceIterator, gives_device_iterators
from millrace_ipu.tensorflow.values import host_array

DatasetResult = TypeVar("DatasetResult")


class Dataset:
    """A stream of elements, created by the class methods or by methods of another data set.

    Args:
        elements: returns a new iterator over NumPy elements at each call.
        cardinality: number of elements, or `steps.INFINITE`, or `steps.UNKNOWN`.
        spec: returns the spec of the elements; None if only the first element shows it.
    """

    def __init__(
        self,
        elements: Callable[[], Iterator[Any]],
        cardinality: float,
        spec: Callable[[], ElementSpec],
    ):
        self._elements, self._cardinality, self._make_spec = elements, cardinality, spec
        self._spec: Any = None

    from_tensor_slices = classmethod(sources.from_tensor_slices)
    from_tensors = classmethod(sources.from_tensors)
    from_generator = classmethod(sources.from_generator)
    range = classmethod(sources.from_range)

    @staticmethod
    def zip(*datasets: object) -> "Dataset":
        """Returns a data set whose elements are tuples or dicts of elements of several others."""
        tree = datasets[0] if len(datasets) == 1 else datasets
        zipped, treedef = jax.tree.flatten(tree)

        def elements() -> Iterator[Any]:
            iterators = [dataset._elements() for dataset in zipped]
            return (jax.tree.unflatten(treedef, row) for row in zip(*iterators, strict=False))

        return Dataset(
            elements,
            float(np.min([dataset._cardinality for dataset in zipped])),
            lambda: jax.tree.unflatten(treedef, [dataset.element_spec for dataset in zipped]),
        )

    @property
    def element_spec(self) -> Any:
        """A `TensorSpec` for each array of an element; unknown sizes are None."""
        if self._spec is None:
            self._spec = self._make_spec()
        if self._spec is None:
            first = next(self._elements(), None)
            if first is None:
                raise DataError("The data set is empty, so its elements have no shape.")
            self._spec = spec_of(first)
        return self._spec

    def cardinality(self) -> np.int64:
        """Returns the number of elements; -1 if it is infinite, -2 if it is unknown."""
        number = self._cardinality
        return np.int64(number if math.isfinite(number) else -1 if math.isinf(number) else -2)

    def __len__(self) -> int:
        if not math.isfinite(self._cardinality):
            kind = "infinite" if math.isinf(self._cardinality) else "unknown"
            raise TypeError(
                f"The length of this data set is {kind}. Use take(n), or cardinality()."
            )
        return int(self._cardinality)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        """Returns an iterator over arrays; in the scope of an IPUStrategy, one for its devices."""
        if gives_device_iterators():
            return DeviceIterator(self)
        return map(host_array, self._elements())

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over NumPy arrays, in any scope."""
        return self._elements()

    def as_data_adapter(self, **arguments: Any) -> "DatasetAdapter":
        """Returns the adapter from which Keras's loops draw batches."""
        return DatasetAdapter(self, **arguments)

    def __repr__(self) -> str:
        return f"<millrace_ipu.tensorflow Dataset, cardinality {self.cardinality()}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"This data set has no {name!r}. Write it in map(), or as a generator for "
            "Dataset.from_generator(); or use a data set of tensorflow itself."
        )

    def map(self, map_func: Callable[..., object], *_: object, **__: object) -> "Dataset":
        """Returns a data set of a function's results. Options for parallel calls have no effect."""

        def spec() -> ElementSpec:
            try:
                return mapped_spec(map_func, self.element_spec)
            except Exception:  # the function fails on zeros: the first element will show the spec
                return None

        def elements() -> Iterator[Any]:
            return (mapped(map_func, element) for element in self._elements())

        return Dataset(elements, self._cardinality, spec)

    def filter(self, predicate: Callable[..., object]) -> "Dataset":
        """Returns a data set of the elements for which the predicate is true."""

        def elements() -> Iterator[Any]:
            return (element for element in self._elements() if call(predicate, element))

        number = self._cardinality if math.isinf(self._cardinality) else steps.UNKNOWN
        return self._like(elements, number)

    def batch(
        self, batch_size: int, drop_remainder: bool = False, *_: object, **__: object
    ) -> "Dataset":
        """Returns a data set of batches; the last may be smaller, unless the remainder is dropped.

        Options for parallel calls have no effect.
        """
        size = whole_number("batch_size", batch_size, 1)
        number = self._cardinality
        is_full = drop_remainder or math.isinf(number) or number % size == 0
        if math.isfinite(number):
            number = number // size if drop_remainder else -(-number // size)
        return Dataset(
            lambda: steps.batches(self._elements(), size, drop_remainder),
            number,
            lambda: spec_with_rows(self.element_spec, size if is_full else None),
        )

    def unbatch(self) -> "Dataset":
        """Returns a data set of the rows of each element."""

        def elements() -> Iterator[Any]:
            for element in self._elements():
                for row in range(len(jax.tree.leaves(element)[0])):
                    yield jax.tree.map(lambda leaf, row=row: leaf[row], element)

        def spec() -> Any:
            return jax.tree.map(lambda s: TensorSpec(s.shape[1:], s.dtype), self.element_spec)

        rows = jax.tree.leaves(self.element_spec)[0].shape[0]
        return Dataset(
            elements, self._cardinality * (steps.UNKNOWN if rows is None else rows), spec
        )

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = True,
    ) -> "Dataset":
        """Returns the elements in random order, drawn from a buffer of `buffer_size` elements."""
        size = whole_number("buffer_size", buffer_size, 1)
        anew = reshuffle_each_iteration is not False
        return self._like(steps.Shuffled(self._elements, size, seed, anew), self._cardinality)

    def repeat(self, count: int | None = None) -> "Dataset":
        """Returns `count` passes over the elements; None or -1 repeats them forever."""
        times = None if count is None or count < 0 else count
        number = self._cardinality
        number = number * (steps.INFINITE if times is None else times) if number else 0
        return self._like(lambda: steps.repeated(self._elements, times), number)

    def take(self, count: int) -> "Dataset":
        """Returns the first `count` elements; -1 means all."""
        stop = None if count < 0 else count
        number = self._cardinality if count < 0 else float(np.minimum(self._cardinality, count))
        return self._like(lambda: itertools.islice(self._elements(), stop), number)

    def skip(self, count: int) -> "Dataset":
        """Returns all but the first `count` elements; -1 skips all of them."""
        if count < 0:
            return self.take(0)
        number = max(self._cardinality - count, 0)
        return self._like(lambda: itertools.islice(self._elements(), count, None), number)

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Returns every `num_shards`-th element, starting at `index`."""
        number = self._cardinality
        if math.isfinite(number):
            number = len(range(index, int(number), num_shards))
        elements = self._elements
        return self._like(lambda: itertools.islice(elements(), index, None, num_shards), number)

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """Returns the elements of this data set, followed by those of another."""

        def elements() -> Iterator[Any]:
            yield from self._elements()
            yield from dataset._elements()

        return self._like(elements, self._cardinality + dataset._cardinality)

    def enumerate(self, start: int = 0) -> "Dataset":
        """Returns a data set of pairs: the number of an element, and the element."""
        return Dataset(
            lambda: zip(map(np.int64, itertools.count(start)), self._elements(), strict=False),
            self._cardinality,
            lambda: (TensorSpec((), "int64"), self.element_spec),
        )

    def cache(self, filename: str = "") -> "Dataset":
        """Returns the elements, kept in memory once a whole pass has read them."""
        return self._like(steps.Cached(self._elements), self._cardinality)

    def prefetch(self, buffer_size: int | None = None) -> "Dataset":
        """Returns this data set: feeds read ahead in any case."""
        return self

    with_options = prefetch  # which are about TensorFlow's threads

    def apply(self, transformation_func: Callable[["Dataset"], DatasetResult]) -> DatasetResult:
        """Returns the result of calling a function with this data set."""
        return transformation_func(self)

    def reduce(
        self,
        initial_state: DatasetResult,
        reduce_func: Callable[[DatasetResult, ArrayTree], DatasetResult],
    ) -> DatasetResult:
        """Returns the state after `reduce_func(state, element)` for all elements in order."""
        state = initial_state
        for element in self._elements():
            state = reduce_func(state, host_array(element))
        return state

    def _like(self, elements: Callable[[], Iterator[Any]], cardinality: float) -> "Dataset":
        return Dataset(elements, cardinality, lambda: self.element_spec)


class DatasetAdapter(DataAdapter):
    """Through which Keras's loops draw the batches of a data set, and learn their number."""

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
