"""What a data set may be, and how its elements are read.

    PyDataset         through Keras's own adapter, with its workers
    tf.data.Dataset   as NumPy arrays
    a function        called, for the data set that it returns
    an infeed queue   for the data set that it holds
    anything else     that can be iterated: DataLoaders of torch and grain, generators, lists ...

None of the libraries is imported: what a data set has decides.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace._compat.keras_data import get_data_adapter
from millrace.errors import DataError, DTypeError, OptionError

_KINDS = (
    "a tf.data.Dataset, a torch or grain DataLoader, a keras.utils.PyDataset, a generator or "
    "another iterable of batches, or a function without arguments that returns one of these"
)


def find_source(dataset: Any) -> Any:
    """Returns the data set itself where an infeed queue was given.

    A torch DataLoader has a `dataset`, too, of rows instead of batches; it can be iterated.
    """
    is_queue = hasattr(dataset, "prefetch_depth") or not hasattr(dataset, "__iter__")
    return dataset.dataset if is_queue and hasattr(dataset, "dataset") else dataset


def restarts(dataset: Any) -> bool:
    """Whether reading it again begins anew: all but generators and other iterators do."""
    return not isinstance(find_source(dataset), Iterator)


@contextlib.contextmanager
def opened(dataset: Any) -> Iterator[Iterator[Any]]:
    """Yields one pass over a data set's elements, their leaves as NumPy arrays.

    Elements may be drawn by another thread, which should have ended when this is left.

    Raises:
        DTypeError: if it is no data set, or its elements hold no arrays.
        OptionError: if it is a function that needs arguments.
        DataError: if an element holds Python objects.
    """
    source = _made(find_source(dataset))
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
        # Without a copy, which the tensors' own conversion makes.
        source = source.as_numpy_iterator()
    yield _arrays(iter(source))


def _made(source: Any) -> Any:
    """Returns what a function or a class makes, and anything else as it is."""
    is_data = hasattr(source, "__iter__") and not isinstance(source, type)
    if is_data or not callable(source):
        return source
    try:
        inspect.signature(source).bind()
    except TypeError as error:
        name = getattr(source, "__name__", "")
        raise OptionError(
            f"A function as data set is called without arguments, and {source!r} needs some: "
            f"{error}. Set dataset=lambda: {name if name.isidentifier() else 'function'}(...)."
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    return find_source(source())


def _check_iterable(source: Any) -> None:
    is_array = hasattr(source, "shape") and hasattr(source, "dtype")
    if is_array or isinstance(source, tuple | Mapping | str | bytes):
        raise DTypeError(
            "A data set gives one batch after the other. Received: a value of type "
            f"{type(source).__name__}, which holds all rows at once, or none. Set dataset to "
            f"{_KINDS}."
        )
    if not hasattr(source, "__iter__") and not hasattr(type(source), "__getitem__"):
        raise DTypeError(
            f"dataset={source!r:.60} of type {type(source).__name__} cannot be iterated. Set "
            f"dataset to {_KINDS}."
        )


def _arrays(elements: Iterator[Any]) -> Iterator[Any]:
    for index, element in enumerate(elements):
        leaves, tree = jax.tree.flatten(element)
        if not any(hasattr(leaf, "shape") for leaf in leaves):
            raise DTypeError(
                f"Element {index} of the data set holds no array. Received: {element!r:.60} of "
                f"type {type(element).__name__}. An element is one batch: an array, or arrays in "
                "tuples, lists and dicts, such as (x, y)."
            )
        arrays = [np.asarray(leaf) for leaf in leaves]
        for position, array in enumerate(arrays):
            if array.dtype.kind == "O":
                raise DataError(
                    f"Leaf {position} of element {index} has Python objects of unknown size in an "
                    f"array of shape {array.shape}. Rows of different lengths and text become "
                    "arrays of one shape first: pad or encode them in the data set."
                )
        yield jax.tree.unflatten(tree, arrays)
