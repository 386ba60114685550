"""Sources of data sets: arrays, generators, ranges. Each is a class method of `Dataset`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.typing import DTypeLike

from millrace.errors import DataError, OptionError
from millrace_ipu.tensorflow.data import steps
from millrace_ipu.tensorflow.data.elements import (
    ElementSpec,
    TensorSpec,
    as_element,
    spec_of,
)
from millrace_ipu.tensorflow.dtypes import as_dtype

Stream = TypeVar("Stream")  # the class `Dataset`, which has these functions as class methods
StreamClass = Callable[[Callable[[], Iterator[Any]], float, Callable[[], ElementSpec]], Stream]


def from_tensor_slices(
    cls: StreamClass[Stream], tensors: object, name: str | None = None
) -> Stream:
    """Returns a data set of the rows of arrays.

    Raises:
        DataError: if the arrays have different numbers of rows.
    """
    arrays = as_element(tensors)
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in jax.tree.leaves(arrays)}
    if len(sizes) != 1 or None in sizes:
        shapes = [leaf.shape for leaf in jax.tree.leaves(arrays)]
        raise DataError(
            f"from_tensor_slices() takes arrays with the same number of rows. Received: {shapes}. "
            "Use Dataset.from_tensors() for a single element."
        )
    leaves, treedef = jax.tree.flatten(arrays)
    rows = len(leaves[0])

    def elements() -> Iterator[Any]:
        if treedef == _PAIR:  # as in nearly all programs; unflattening would cost time
            yield from zip(*leaves, strict=True)
            return
        for row in zip(*leaves, strict=True):
            yield jax.tree.unflatten(treedef, row)

    def spec() -> Any:
        return jax.tree.map(lambda leaf: TensorSpec(leaf.shape[1:], leaf.dtype), arrays)

    return cls(elements, rows, spec)


_PAIR = jax.tree.structure((0, 0))


def from_tensors(cls: StreamClass[Stream], tensors: object, name: str | None = None) -> Stream:
    """Returns a data set of one element."""
    element = as_element(tensors)
    return cls(lambda: iter([element]), 1, lambda: spec_of(element))


def from_range(
    cls: StreamClass[Stream],
    *args: int,
    output_type: DTypeLike = "int64",
    name: str | None = None,
) -> Stream:
    """Returns a data set of the numbers of Python's `range`."""
    numbers, dtype = range(*map(int, args)), as_dtype(output_type)
    return cls(lambda: map(dtype.type, numbers), len(numbers), lambda: TensorSpec((), dtype))


def from_generator(
    cls: StreamClass[Stream],
    generator: Callable[..., Iterable[object]],
    output_types: object = None,
    output_shapes: object = None,
    args: tuple[object, ...] = (),
    output_signature: ElementSpec = None,
    name: str | None = None,
) -> Stream:
    """Returns a data set of the elements of a generator; its length is unknown.

    Args:
        cls: the class of the data set.
        generator: a function that returns a new iterator at each call.
        output_types: dtypes of the arrays of an element, if there is no signature.
        output_shapes: shapes of these arrays.
        args: arguments of the generator.
        output_signature: `tf.TensorSpec`s of an element.
        name: has no effect.

    Raises:
        OptionError: if `generator` is not a function, or neither types nor a signature are set.
    """
    if not callable(generator):
        raise OptionError(
            f"from_generator() takes a function that returns an iterator. Received: "
            f"{type(generator).__name__}. Set from_generator(lambda: iterable, ...)."
        )
    if output_signature is None and output_types is None:
        raise OptionError(
            "from_generator() needs the shapes and dtypes of the elements. Set output_signature="
            "tf.TensorSpec(shape, dtype), or a tuple of them."
        )
    signature: Any = output_signature
    if signature is None:
        dtypes, treedef = jax.tree.flatten(output_types)
        shapes: list[Any] = [None] * len(dtypes)
        if output_shapes is not None:
            shapes = jax.tree.leaves(output_shapes, is_leaf=_is_shape)
        signature = jax.tree.unflatten(
            treedef, [TensorSpec(s, as_dtype(d)) for s, d in zip(shapes, dtypes, strict=True)]
        )

    def elements() -> Iterator[Any]:
        for number, value in enumerate(generator(*args)):
            yield _as_declared(value, signature, number)

    return cls(elements, steps.UNKNOWN, lambda: signature)


def _as_declared(value: object, signature: ElementSpec, number: int) -> Any:
    if isinstance(value, list) and isinstance(signature, tuple):
        value = tuple(value)
    leaves, treedef = jax.tree.flatten(signature)
    try:
        values = treedef.flatten_up_to(value)
        arrays = [np.asarray(item, s.dtype) for item, s in zip(values, leaves, strict=True)]
    except (ValueError, TypeError) as error:
        raise DataError(
            f"Element {number} of a generator, {value!r}, does not match output_signature: "
            f"{signature}. Yield values of that structure."
        ) from error
    for array, s in zip(arrays, jax.tree.leaves(signature), strict=True):
        if not _fits(array.shape, s.shape):
            raise DataError(
                f"Element {number} of a generator has an array of shape {array.shape}, where "
                f"output_signature has {s.shape}. Set None for sizes that vary."
            )
    return jax.tree.unflatten(treedef, arrays)


def _fits(shape: tuple[int, ...], declared: Sequence[int | None] | None) -> bool:
    if declared is None:
        return True
    same = len(shape) == len(declared)
    return same and all(b in (None, a) for a, b in zip(shape, declared, strict=True))


def _is_shape(value: object) -> bool:
    return isinstance(value, list | tuple) and all(n is None or isinstance(n, int) for n in value)
