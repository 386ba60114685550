"""Checks of the data for an extended model, whose shapes and size must be known beforehand.

Refused are:

generators, iterators, PyDatasets       unknown shapes
data sets with open dimensions          unknown shapes
a smaller last batch                    another shape
fewer batches than the epochs need      an epoch that would end early
"""

import logging
import types
from collections.abc import Iterator, Mapping
from typing import cast

import jax
import keras

from millrace.errors import DataError
from millrace.extend import DataAdapter, Mode

logger = logging.getLogger("millrace")

INFINITE, UNKNOWN = -1, -2  # cardinalities of data sets
_STEPS = {Mode.TRAIN: "steps_per_epoch", Mode.TEST: "steps", Mode.PREDICT: "steps"}


def check_source(data: object) -> None:
    """Refuses data of unknown shapes, such as that of Python code.

    Raises:
        DataError: saying how to make a data set of it.
    """
    kind = type(data).__name__
    if isinstance(data, types.GeneratorType | keras.utils.PyDataset):
        raise DataError(
            f"The data is a {kind}, whose shapes are unknown. Make a data set of it: "
            "tf.data.Dataset.from_generator(lambda: data, output_signature=...)."
        )
    if isinstance(data, Iterator):
        raise DataError(
            f"The data is an iterator, {kind}, whose shapes are unknown. Wrap it in a generator: "
            "def generator(): yield from data, and then "
            "tf.data.Dataset.from_generator(generator, output_signature=...)."
        )
    for leaf in jax.tree.leaves(getattr(data, "element_spec", None), is_leaf=_has_shape):
        shape = getattr(leaf, "shape", ())
        dimensions = getattr(shape, "dims", shape)  # TensorFlow's own shapes have these
        if dimensions is None or None in list(dimensions):
            raise DataError(
                f"Elements of the data set have the shape {shape}, which is partly unknown. Set "
                "drop_remainder=True in batch(), or give from_generator() full shapes."
            )


def check_batches(
    adapter: DataAdapter, arguments: Mapping[str, object], mode: Mode, epochs: int
) -> int:
    """Returns the number of batches in an epoch.

    Args:
        adapter: Keras's, of the data.
        arguments: of Keras's epoch iterator.
        mode: of the loop.
        epochs: number of epochs of the loop.

    Raises:
        DataError: if the last batch is smaller, or their number is unknown or too small.
    """
    size = getattr(adapter, "batch_size", None)
    last = getattr(adapter, "partial_batch_size", None) if adapter.has_partial_batch else None
    if last:
        rows = (adapter.num_batches - 1) * size + last
        raise DataError(
            f"The data has {rows} rows, which are not a whole number of batches of "
            f"batch_size={size}: the last one would have {last}. Set batch_size to a divisor of "
            f"{rows}, or leave {last} rows out."
        )
    steps, name = cast(int | None, arguments.get("steps_per_epoch")), _STEPS[mode]
    available = adapter.num_batches
    if steps is None and available is None:
        raise DataError(
            f"The number of batches in the data is unknown, and {name}=None. Set {name}, or give "
            "the data set a size: no repeat() without a number."
        )
    if steps is None or steps == available:
        return available  # the data starts again in every epoch
    needed = steps * epochs
    if available is None:
        if _cardinality(arguments.get("x")) != INFINITE:
            logger.info(
                "The number of batches in the data is unknown; %d are needed. The data may end "
                "earlier. Append repeat() to the data set to be sure.",
                needed,
            )
    elif available < needed:
        raise DataError(
            f"The data has {available} batches, and {epochs} epochs of {name}={steps} need "
            f"{needed}. Append repeat() to the data set, or set {name} to "
            f"{available // epochs or available} or less."
        )
    return steps


def _cardinality(data: object) -> int:
    cardinality = getattr(data, "cardinality", None)
    return int(cardinality()) if callable(cardinality) else UNKNOWN  # type: ignore[call-overload]


def _has_shape(leaf: object) -> bool:
    return hasattr(leaf, "shape")
