"""The kinds of data sets, and how their elements are read.

    PyDataset          through Keras's own adapter, with its workers
    tf.data.Dataset    as NumPy arrays
    a function         called: it returns the data set
    an infeed queue    through the data set that it holds
    another iterable   DataLoaders of torch and grain, generators, lists ...

None of these libraries is imported: the methods of a data set tell its kind.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import keras
import numpy as np

from millrace._compat.keras_data import get_data_adapter
from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError, DTypeError, OptionError
from millrace.programs.feeds.infeed_queue import InfeedQueue

BatchSource: TypeAlias = Iterable[object] | keras.utils.PyDataset | InfeedQueue | Callable[[], Any]

_KINDS = (
    "a tf.data.Dataset, a torch or grain DataLoader, a keras.utils.PyDataset, a generator or "
    "another iterable of batches, or a function without arguments that returns one of these"
)


def find_source(dataset: BatchSource) -> Any:
    """Returns the data set behind an infeed queue, and any other data set as it is.

    A torch DataLoader has an attribute `dataset`, too, of rows instead of batches; unlike a queue
    it can be iterated.
    """
    queue: Any = dataset
    is_queue = hasattr(queue, "prefetch_depth") or not hasattr(queue, "__iter__")
    return queue.dataset if is_queue and hasattr(queue, "dataset") else dataset


@contextlib.contextmanager
def opened(dataset: BatchSource) -> Iterator[Iterator[Any]]:
    """Yields one pass over a data set's elements, whose leaves are NumPy arrays.

    Another thread may draw the elements; it should end before the context does.

    Raises:
        DTypeError: if `dataset` is no data set, or its elements contain no arrays.
        OptionError: if it is a function that needs arguments.
        DataError: if an element contains Python objects.
    """
    source = _called(find_source(dataset))
    if isinstance(source, keras.utils.PyDataset):
        adapter = get_data_adapter(source)
        adapter.on_epoch_begin()  # starts the data set's workers
        try:
            yield _arrays(iter(adapter.get_numpy_iterator()))
        finally:
            adapter.on_epoch_end()
        return
    _check_iterable(source)
    if hasattr(source, "as_numpy_iterator"):
        # Avoids the copy that the tensors' own conversion makes.
        source = source.as_numpy_iterator()
    yield _arrays(iter(source))


def _called(source: Any) -> Any:
    """Returns the result of a function or a class, and anything else as it is."""
    is_data = hasattr(source, "__iter__") and not isinstance(source, type)
    if is_data or not callable(source):
        return source
    try:
        inspect.signature(source).bind()
    except TypeError as error:
        name = getattr(source, "__name__", "")
        raise OptionError(
            f"A function that returns a data set is called without arguments, but {source!r} needs "
            f"some: {error}. Set dataset=lambda: "
            f"{name if name.isidentifier() else 'function'}(...)."
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    dataset: Any = source()
    return find_source(dataset)


def _check_iterable(source: object) -> None:
    is_array = hasattr(source, "shape") and hasattr(source, "dtype")
    if is_array or isinstance(source, tuple | Mapping | str | bytes):
        raise DTypeError(
            "A data set supplies one batch after another. Received: a value of type "
            f"{type(source).__name__}, which is not divided into batches. Set dataset to {_KINDS}."
        )
    if not hasattr(source, "__iter__") and not hasattr(type(source), "__getitem__"):
        raise DTypeError(
            f"dataset={source!r:.60} of type {type(source).__name__} cannot be iterated. Set "
            f"dataset to {_KINDS}."
        )


def _arrays(elements: Iterator[ArrayTree]) -> Iterator[Any]:
    for index, element in enumerate(elements):
        leaves, tree = jax.tree.flatten(element)
        if not any(hasattr(leaf, "shape") for leaf in leaves):
            raise DTypeError(
                f"Element {index} of the data set contains no array. Received: {element!r:.60} of "
                f"type {type(element).__name__}. An element is one batch: an array, or arrays in "
                "tuples, lists and dicts, such as (x, y)."
            )
        arrays = [np.asarray(leaf) for leaf in leaves]
        for position, array in enumerate(arrays):
            if array.dtype.kind == "O":
                raise DataError(
                    f"Leaf {position} of element {index} is an array of shape {array.shape} that "
                    "contains Python objects of unknown size. Pad rows of different lengths, and "
                    "encode text as numbers, in the data set."
                )
        yield jax.tree.unflatten(tree, arrays)
