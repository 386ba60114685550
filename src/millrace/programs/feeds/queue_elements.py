"""The elements of an infeed queue: NumPy arrays of one structure, of types that devices have."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from millrace.base.pytrees import ArrayTree
from millrace.errors import DataError
from millrace.programs.feeds.block import batch_spec
from millrace.programs.plan import BatchSpec

logger = logging.getLogger("millrace")


def check_dataset(dataset: object) -> None:
    """Refuses what cannot be iterated, and data sets whose elements have no fixed shapes.

    Raises:
        DataError: saying what to set.
    """
    is_iterable = hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    if not is_iterable and not callable(dataset):
        raise DataError(
            "An infeed queue takes an iterable, or a function that returns one. "
            f"Received: {dataset!r} of type {type(dataset).__name__}."
        )
    for leaf in jax.tree.leaves(getattr(dataset, "element_spec", None)):  # of tf.data
        shape = getattr(leaf, "shape", None)
        dims = getattr(shape, "dims", shape)
        if shape is None or dims is None or any(size is None for size in shape):
            raise DataError(
                f"Elements of an infeed queue have one fixed shape, and the data set declares "
                f"{leaf}. Set drop_remainder=True in dataset.batch(), and pad rows of different "
                "lengths."
            )


def elements_of(source: Iterable[Any]) -> Iterator[ArrayTree]:
    """Yields elements as NumPy arrays, and checks that their specs are equal.

    Raises:
        DataError: naming the element that is not like the first one.
    """
    convert = _Converter()
    spec: BatchSpec | None = None
    for index, element in enumerate(source):
        element = jax.tree.map(convert, element)
        current = batch_spec(element)
        if spec is not None and current != spec:
            raise DataError(
                f"Element {index} of an infeed queue's data set is {spec_text(current)}, and the "
                f"first one is {spec_text(spec)}. A compiled loop takes elements of one structure "
                "and shape: set drop_remainder=True where the last batch is smaller, or pad."
            )
        spec = current
        yield element


class _Converter:
    """Converts leaves to NumPy arrays of at most 32 bits, with one warning about 64-bit arrays."""

    def __init__(self) -> None:
        self._warned = False

    def __call__(self, leaf: ArrayLike) -> np.ndarray:
        is_number = isinstance(leaf, int | float)
        array = np.asarray(leaf)
        wanted = jax.dtypes.canonicalize_dtype(array.dtype) if array.dtype.kind in "fiuc" else None
        if wanted is None or wanted == array.dtype:
            return array
        if array.dtype.kind in "iu" and array.size:
            limits = np.iinfo(wanted)
            if array.min() < limits.min or array.max() > limits.max:
                raise DataError(
                    f"An element of an infeed queue has {array.dtype} values from {array.min()} "
                    f"to {array.max()}, and devices hold {wanted}. Make them smaller in the data "
                    "set, by a modulus or as two numbers."
                )
        if not self._warned and not is_number:
            self._warned = True
            logger.warning(
                "The data set of an infeed queue has %s arrays, which become %s. Cast them in "
                "the data set to save the time.",
                array.dtype,
                wanted,
            )
        return array.astype(wanted)


def spec_text(spec: BatchSpec) -> str:
    """Returns a spec of elements as text."""
    return f"{spec} as {spec.treedef}"
