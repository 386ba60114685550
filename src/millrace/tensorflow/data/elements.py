"""Elements of data sets: arrays, in tuples and dicts; and what is known of them beforehand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from millrace.errors import DataError
from millrace.tensorflow.values import host_array


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one array of an element; an unknown size is None."""

    shape: tuple[int | None, ...] | None
    dtype: Any = "float32"
    name: str | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        if shape is not None:
            object.__setattr__(self, "shape", tuple(None if s is None else int(s) for s in shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def __repr__(self) -> str:
        return f"TensorSpec(shape={self.shape}, dtype={self.dtype.name})"


def TensorShape(dims: Sequence[int | None] | None) -> tuple[int | None, ...] | None:  # noqa: N802
    """Returns a shape, which is a tuple here; of unknown rank it is None."""
    return None if dims is None else tuple(dims)


def as_element(value: Any) -> Any:
    """Returns a value as an element: numbers and lists become arrays, Python's of 32 bits."""
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
            f"An element of a data set is {value!r} of type {type(value).__name__}, which is no "
            "array. Return arrays and numbers, in tuples and dicts; rows of one length."
        )
    return array.astype({"float64": "float32", "int64": "int32"}.get(array.dtype.name, array.dtype))


def call(function: Callable[..., Any], element: Any) -> Any:
    """Calls what a user gives a data set: a tuple becomes several arguments."""
    given = host_array(element)
    is_tuple = isinstance(given, tuple) and not hasattr(given, "_fields")
    return function(*given) if is_tuple else function(given)


def mapped(function: Callable[..., Any], element: Any) -> Any:
    """Returns what a function of `map` makes of an element. A list is a tuple there."""
    result = call(function, element)
    return as_element(tuple(result) if isinstance(result, list) else result)


def spec_of(element: Any) -> Any:
    """Returns what an element looks like."""
    return jax.tree.map(lambda leaf: TensorSpec(leaf.shape, leaf.dtype), element)


def with_rows(spec: Any, rows: int | None) -> Any:
    """Returns what batches of such elements look like."""
    return _over(spec, lambda s: None if s.shape is None else (rows, *s.shape))


def mapped_spec(function: Callable[..., Any], spec: Any) -> Any:
    """Returns what a function makes of such elements, by calling it with zeros.

    Unknown sizes are tried as two numbers: a result that differs is unknown, too.
    """
    if any(leaf.shape is None for leaf in leaves_of(spec)):
        return None
    tries = [2] if all(None not in leaf.shape for leaf in leaves_of(spec)) else [2, 3]
    found = []
    for size in tries:
        zeros = jax.tree.map(
            lambda s, size=size: np.zeros([size if n is None else n for n in s.shape], s.dtype),
            spec,
        )
        found.append(spec_of(mapped(function, zeros)))
    return jax.tree.map(_agreed, *found)


def _agreed(first: TensorSpec, *others: TensorSpec) -> TensorSpec:
    shapes = zip(first.shape or (), *(other.shape or () for other in others), strict=True)
    return TensorSpec(tuple(s[0] if len(set(s)) == 1 else None for s in shapes), first.dtype)


def stacked(elements: Sequence[Any]) -> Any:
    """Returns a batch of elements.

    Raises:
        DataError: if they are not of one shape.
    """
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *elements)
    except ValueError as error:
        shapes = sorted({str(spec_of(element)) for element in elements})
        raise DataError(
            f"batch() stacks elements of one shape, and got {' and '.join(shapes)}. Pad or cut "
            "them in map() before."
        ) from error


def leaves_of(spec: Any) -> list[Any]:
    """Returns the specs of an element's arrays."""
    return jax.tree.leaves(spec)


def _over(spec: Any, shape: Callable[[TensorSpec], Any]) -> Any:
    return jax.tree.map(lambda s: TensorSpec(shape(s), s.dtype), spec)
