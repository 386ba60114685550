"""`tf.data.Dataset`: a stream of elements, made of others step by step.

    Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32, drop_remainder=True).repeat()

Nothing is read before somebody iterates, and each iteration begins anew. Elements are NumPy arrays,
in tuples and dicts. In the scope of an IPUStrategy `iter(dataset)` is for compiled functions.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from millrace.errors import DataError
from millrace.options import whole_number
from millrace.tensorflow.data import sources, steps
from millrace.tensorflow.data.adapter import DatasetAdapter
from millrace.tensorflow.data.elements import TensorSpec as TensorSpec
from millrace.tensorflow.data.elements import call, leaves_of, mapped, mapped_spec, spec_of
from millrace.tensorflow.data.elements import with_rows as spec_with_rows
from millrace.tensorflow.iterators import DeviceIterator, gives_device_iterators
from millrace.tensorflow.values import host_array


class Dataset:
    """A stream of elements. Made by its class methods, and by methods of other data sets.

    Args:
        elements: returns an iterator over NumPy elements, anew at each call.
        cardinality: how many, or `INFINITE_CARDINALITY`, or `UNKNOWN_CARDINALITY`.
        spec: returns what they look like; None where only a look at the first one tells.
    """

    def __init__(
        self,
        elements: Callable[[], Iterator[Any]],
        cardinality: int,
        spec: Callable[[], Any],
    ):
        self._elements, self._cardinality, self._make_spec = elements, cardinality, spec
        self._spec: Any = None

    from_tensor_slices = classmethod(sources.from_tensor_slices)
    from_tensors = classmethod(sources.from_tensors)
    from_generator = classmethod(sources.from_generator)
    range = classmethod(sources.from_range)

    @staticmethod
    def zip(*datasets: Any) -> "Dataset":
        """Returns a data set of tuples, or of dicts, of the elements of several ones."""
        tree = datasets[0] if len(datasets) == 1 else datasets
        parts, treedef = jax.tree.flatten(tree)

        def elements() -> Iterator[Any]:
            iterators = [part._elements() for part in parts]
            return (jax.tree.unflatten(treedef, row) for row in zip(*iterators, strict=False))

        return Dataset(
            elements,
            steps.least(part._cardinality for part in parts),
            lambda: jax.tree.unflatten(treedef, [part.element_spec for part in parts]),
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
        """Returns the number of elements; -1 if it is infinite, -2 if unknown."""
        return np.int64(self._cardinality)

    def __len__(self) -> int:
        if self._cardinality < 0:
            kind = "infinite" if self._cardinality == steps.INFINITE else "unknown"
            raise TypeError(
                f"The length of this data set is {kind}. Use take(n), or cardinality()."
            )
        return self._cardinality

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        """Returns an iterator: over arrays, or in the scope of an IPUStrategy for its devices."""
        if gives_device_iterators():
            return DeviceIterator(self)
        return map(host_array, self._elements())

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Returns an iterator over NumPy arrays, in any scope."""
        return self._elements()

    def as_data_adapter(self, **arguments: Any) -> DatasetAdapter:
        """Returns what the loops of Keras draw batches from."""
        return DatasetAdapter(self, **arguments)

    def __repr__(self) -> str:
        return f"<millrace.tensorflow Dataset, cardinality {self._cardinality}>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"This data set has no {name!r}. Do it in map(), or in a generator with "
            "Dataset.from_generator(); data sets of tensorflow itself are taken, too."
        )

    def map(self, map_func: Callable[..., Any], *_: Any, **__: Any) -> "Dataset":
        """Returns what a function makes of each element. How parallel is no matter here."""

        def spec() -> Any:
            try:
                return mapped_spec(map_func, self.element_spec)
            except Exception:  # a function that zeros are no example for: the data will tell
                return None

        def elements() -> Iterator[Any]:
            return (mapped(map_func, element) for element in self._elements())

        return Dataset(elements, self._cardinality, spec)

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """Returns those elements of which the predicate is true."""

        def elements() -> Iterator[Any]:
            return (element for element in self._elements() if call(predicate, element))

        known = self._cardinality == steps.INFINITE
        number = steps.INFINITE if known else steps.UNKNOWN
        return Dataset(elements, number, lambda: self.element_spec)

    def batch(self, batch_size: int, drop_remainder: bool = False, *_: Any, **__: Any) -> "Dataset":
        """Returns stacks of elements; the last one may have fewer, unless it is dropped."""
        size = whole_number("batch_size", batch_size, 1)
        number = self._cardinality
        is_full = drop_remainder or number == steps.INFINITE or (number >= 0 and not number % size)
        return Dataset(
            lambda: steps.batches(self._elements(), size, drop_remainder),
            steps.in_batches(number, size, drop_remainder),
            lambda: spec_with_rows(self.element_spec, size if is_full else None),
        )

    def unbatch(self) -> "Dataset":
        """Returns the rows of each element."""

        def elements() -> Iterator[Any]:
            for element in self._elements():
                for row in range(len(jax.tree.leaves(element)[0])):
                    yield jax.tree.map(lambda leaf, row=row: leaf[row], element)

        def spec() -> Any:
            return jax.tree.map(lambda s: TensorSpec(s.shape[1:], s.dtype), self.element_spec)

        rows = leaves_of(self.element_spec)[0].shape[0]
        number = self._cardinality
        number = steps.times(number, rows) if rows is not None else min(number, steps.UNKNOWN)
        return Dataset(elements, number, spec)

    def shuffle(
        self, buffer_size: int, seed: Any = None, reshuffle_each_iteration: bool | None = True
    ) -> "Dataset":
        """Returns the elements as drawn at random from a buffer of this size."""
        size = whole_number("buffer_size", buffer_size, 1)
        anew = reshuffle_each_iteration is not False
        return self._like(steps.Shuffled(self._elements, size, seed, anew), self._cardinality)

    def repeat(self, count: int | None = None) -> "Dataset":
        """Returns several passes through the elements; None or -1 never ends."""
        times = None if count is None or count < 0 else count
        return self._like(
            lambda: steps.repeated(self._elements, times), steps.times(self._cardinality, times)
        )

    def take(self, count: int) -> "Dataset":
        """Returns the first elements; -1 is all."""
        stop = None if count < 0 else count
        return self._like(
            lambda: sources.islice(self._elements, 0, stop),
            steps.at_most(self._cardinality, count),
        )

    def skip(self, count: int) -> "Dataset":
        """Returns all but the first elements; -1 is none."""
        start = None if count < 0 else count
        return self._like(
            lambda: sources.islice(self._elements, start, None),
            steps.without(self._cardinality, count),
        )

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Returns every `num_shards`-th element, from the one of this index on."""
        number = self._cardinality
        number = number if number < 0 else len(range(index, number, num_shards))
        return self._like(lambda: sources.islice(self._elements, index, None, num_shards), number)

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """Returns the elements of this data set, and then those of another."""
        return self._like(
            lambda: sources.chained(self._elements, dataset._elements),
            steps.together(self._cardinality, dataset._cardinality),
        )

    def enumerate(self, start: int = 0) -> "Dataset":
        """Returns pairs of a number and an element."""
        return Dataset(
            lambda: steps.numbers(self._elements(), start),
            self._cardinality,
            lambda: (TensorSpec((), "int64"), self.element_spec),
        )

    def cache(self, filename: str = "") -> "Dataset":
        """Returns the elements, kept in memory from the first whole pass on."""
        del filename  # memory is where they are kept in any case
        return self._like(steps.Cached(self._elements), self._cardinality)

    def prefetch(self, buffer_size: Any = None) -> "Dataset":
        """Returns this data set: feeds read ahead anyway."""
        del buffer_size
        return self

    def with_options(self, options: Any) -> "Dataset":
        """Returns this data set: its options are about threads of TensorFlow's."""
        del options
        return self

    def apply(self, transformation_func: Callable[["Dataset"], Any]) -> Any:
        """Returns what a function makes of the data set."""
        return transformation_func(self)

    def reduce(self, initial_state: Any, reduce_func: Callable[..., Any]) -> Any:
        """Returns what is left when a function has taken in all elements, one by one."""
        state = initial_state
        for element in self._elements():
            state = reduce_func(state, host_array(element))
        return state

    def _like(self, elements: Callable[[], Iterator[Any]], cardinality: int) -> "Dataset":
        return Dataset(elements, cardinality, lambda: self.element_spec)
