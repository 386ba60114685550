"""Where data sets begin: arrays, generators, numbers. Each is a class method of `Dataset`."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from millrace.errors import DataError, OptionError
from millrace.tensorflow.data import steps
from millrace.tensorflow.data.elements import TensorSpec, as_element, leaves_of, spec_of
from millrace.tensorflow.dtypes import as_dtype


def from_tensor_slices(cls: Any, tensors: Any, name: str | None = None) -> Any:
    """Returns a data set of the rows of arrays.

    Raises:
        DataError: if the arrays have different numbers of rows.
    """
    del name
    arrays = as_element(tensors)
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(arrays)}
    if len(sizes) != 1 or None in sizes:
        shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
        raise DataError(
            f"from_tensor_slices() takes arrays with the same number of rows. Received: {shapes}. "
            "Set Dataset.from_tensors() for a single element."
        )
    (rows,) = sizes
    leaves, treedef = jax.tree.flatten(arrays)

    def elements() -> Iterator[Any]:
        if treedef == _PAIR:  # what nearly all programs have
            yield from zip(*leaves, strict=True)
            return
        for row in zip(*leaves, strict=True):
            yield jax.tree.unflatten(treedef, row)

    def spec() -> Any:
        return jax.tree.map(lambda leaf: TensorSpec(leaf.shape[1:], leaf.dtype), arrays)

    return cls(elements, rows, spec)


_PAIR = jax.tree.structure((0, 0))


def from_tensors(cls: Any, tensors: Any, name: str | None = None) -> Any:
    """Returns a data set of one element."""
    del name
    element = as_element(tensors)
    return cls(lambda: iter([element]), 1, lambda: spec_of(element))


def from_range(cls: Any, *args: int, output_type: Any = "int64", name: str | None = None) -> Any:
    """Returns a data set of numbers, as `range` has them."""
    del name
    numbers, dtype = range(*map(int, args)), as_dtype(output_type)
    return cls(lambda: map(dtype.type, numbers), len(numbers), lambda: TensorSpec((), dtype))


def from_generator(
    cls: Any,
    generator: Callable[..., Any],
    output_types: Any = None,
    output_shapes: Any = None,
    args: tuple[Any, ...] = (),
    output_signature: Any = None,
    name: str | None = None,
) -> Any:
    """Returns a data set of what a generator yields, of unknown length.

    Args:
        cls: the class of the data set.
        generator: a function that returns an iterator, anew at each call.
        output_types: dtypes of the arrays of an element, if there is no signature.
        output_shapes: their shapes.
        args: of the generator.
        output_signature: `tf.TensorSpec`s of an element.
        name: of nothing here.

    Raises:
        OptionError: if it is not a function, or nothing says what it yields.
    """
    del name
    if not callable(generator):
        raise OptionError(
            f"from_generator() takes a function that returns an iterator. Received: "
            f"{type(generator).__name__}. Set from_generator(lambda: iterable, ...)."
        )
    if output_signature is None and output_types is None:
        raise OptionError(
            "from_generator() was not told what the generator yields. Set output_signature="
            "tf.TensorSpec(shape, dtype), or a tuple of them."
        )
    if output_signature is None:
        shapes = iter(_flat_shapes(output_shapes, len(jax.tree.leaves(output_types))))
        output_signature = jax.tree.map(
            lambda dtype: TensorSpec(next(shapes), as_dtype(dtype)), output_types
        )

    def elements() -> Iterator[Any]:
        for number, value in enumerate(generator(*args)):
            yield _as_declared(value, output_signature, number)

    return cls(elements, steps.UNKNOWN, lambda: output_signature)


def _as_declared(value: Any, signature: Any, number: int) -> Any:
    if isinstance(value, list) and isinstance(signature, tuple):
        value = tuple(value)
    leaves, treedef = jax.tree.flatten(signature)
    try:
        parts = treedef.flatten_up_to(value)
        arrays = [np.asarray(part, s.dtype) for part, s in zip(parts, leaves, strict=True)]
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Element {number} of a generator, {value!r}, is not what output_signature says: "
            f"{signature}. Yield values of that structure."
        ) from error
    for array, s in zip(arrays, leaves_of(signature), strict=True):
        if not _fits(array.shape, s.shape):
            raise DataError(
                f"Element {number} of a generator has an array of shape {array.shape}, and "
                f"output_signature says {s.shape}. Set None for sizes that differ."
            )
    return jax.tree.unflatten(treedef, arrays)


def _fits(shape: tuple[int, ...], declared: Any) -> bool:
    if declared is None:
        return True
    same = len(shape) == len(declared)
    return same and all(b in (None, a) for a, b in zip(shape, declared, strict=True))


def _flat_shapes(shapes: Any, number: int) -> list[Any]:
    if shapes is None:
        return [None] * number
    if number == 1:
        return [shapes if _is_shape(shapes) else jax.tree.leaves(shapes, is_leaf=_is_shape)[0]]
    return jax.tree.leaves(shapes, is_leaf=_is_shape)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(n is None or isinstance(n, int) for n in value)


def islice(elements: Callable[[], Iterator[Any]], start: int | None, *rest: Any) -> Iterator[Any]:
    """Returns a part of the elements; from no start on there are none."""
    return iter(()) if start is None else itertools.islice(elements(), start, *rest)


def chained(*parts: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Returns the elements of one after the other; each begins when the one before has ended."""
    for part in parts:
        yield from part()
