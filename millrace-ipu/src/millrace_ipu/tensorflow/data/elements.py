"""Elements of data sets: arrays in tuples and dicts, with their shapes and dtypes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.typing import DTypeLike

from millrace.errors import DataError
from millrace_ipu.pytrees import ArrayTree
from millrace_ipu.tensorflow.values import host_array


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one array of an element; None stands for an unknown size or rank."""

    shape: tuple[int | None, ...] | None
    dtype: DTypeLike = "float32"  # kept as a NumPy dtype
    name: str | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        if shape is not None:
            object.__setattr__(self, "shape", tuple(None if s is None else int(s) for s in shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={np.dtype(self.dtype).name})"


def TensorShape(dims: Sequence[int | None] | None) -> tuple[int | None, ...] | None:  # noqa: N802
    """Returns a shape, which is a plain tuple here; None for an unknown rank."""
    return None if dims is None else tuple(dims)


ElementSpec: TypeAlias = "TensorSpec | Sequence[ElementSpec] | Mapping[Any, ElementSpec] | None"


def as_element(value: Any) -> Any:
    """Returns a value as an element: numbers and lists become 32-bit arrays."""
    if isinstance(value, dict):
        return {k: as_element(item) for k, item in value.items()}
    if isinstance(value, tuple):
        items = [as_element(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if hasattr(value, "dtype"):
        return np.asarray(value)
    array = np.asarray(value)
    if array.dtype == object:
        raise DataError(
            f"An element of a data set is {value!r} of type {type(value).__name__}, which is not "
            "an array. Return arrays and numbers in tuples and dicts, with rows of equal length."
        )
    return array.astype({"float64": "float32", "int64": "int32"}.get(array.dtype.name, array.dtype))


def call(function: Callable[..., object], element: ArrayTree) -> Any:
    """Calls a user's function with an element: a tuple becomes several arguments."""
    arrays = host_array(element)
    is_tuple = isinstance(arrays, tuple) and not hasattr(arrays, "_fields")
    return function(*arrays) if is_tuple else function(arrays)


def mapped(function: Callable[..., object], element: ArrayTree) -> Any:
    """Returns the element that a function of `map` returns. A list becomes a tuple."""
    result = call(function, element)
    return as_element(tuple(result) if isinstance(result, list) else result)


def spec_of(element: ArrayTree) -> Any:
    """Returns the spec of an element."""
    return jax.tree.map(lambda leaf: TensorSpec(leaf.shape, leaf.dtype), element)


def with_rows(spec: ElementSpec, rows: int | None) -> Any:
    """Returns the spec of batches with this number of rows."""

    def batched(leaf: TensorSpec) -> TensorSpec:
        return TensorSpec(None if leaf.shape is None else (rows, *leaf.shape), leaf.dtype)

    return jax.tree.map(batched, spec)


def mapped_spec(function: Callable[..., object], spec: ElementSpec) -> Any:
    """Returns the spec of a function's results, found by calling it with zeros.

    Each unknown size is tried with two numbers: where the results differ, the size is unknown.
    """
    if any(leaf.shape is None for leaf in jax.tree.leaves(spec)):
        return None

    def results(size: int) -> Any:
        def zeros(s: Any) -> np.ndarray:
            return np.zeros([size if n is None else n for n in s.shape], s.dtype)

        return spec_of(mapped(function, jax.tree.map(zeros, spec)))

    if all(None not in leaf.shape for leaf in jax.tree.leaves(spec)):
        return results(2)
    return jax.tree.map(_common, results(2), results(3))


def _common(one: TensorSpec, other: TensorSpec) -> TensorSpec:
    sizes = zip(one.shape or (), other.shape or (), strict=True)
    return TensorSpec(tuple(n if n == m else None for n, m in sizes), one.dtype)


def stacked(elements: Sequence[ArrayTree]) -> Any:
    """Returns a batch of elements.

    Raises:
        DataError: if their shapes differ.
    """
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *elements)
    except ValueError as error:
        shapes = sorted({str(spec_of(element)) for element in elements})
        raise DataError(
            f"batch() stacks elements of the same shape, and received {' and '.join(shapes)}. Pad "
            "or cut them in map() first."
        ) from error
