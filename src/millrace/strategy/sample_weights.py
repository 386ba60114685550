"""Whether sample weights fit the losses that they weigh.

    y            (rows, steps, values)
    losses       (rows, steps)           a loss of Keras is a mean over the last axis
    weights      (rows,) or (rows, steps)

A loss of the user's own may have any shape, and is not judged.
"""

from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import DataError


def check_sample_weight(model: Any, y: Any, weights: Any, name: str = "sample_weight") -> None:
    """Refuses weights with more axes than the losses of the model have.

    Args:
        model: with the loss that `compile` was given.
        y: targets.
        weights: a weight for each row of them, or for each step of each row.
        name: of the weights, as the user passes them.

    Raises:
        DataError: with the shapes.
    """
    arrays = isinstance(y, np.ndarray | jax.Array) and isinstance(weights, np.ndarray | jax.Array)
    if not arrays or weights.ndim < 2 or not weights.size:
        return
    axes = _axes_of_losses(model, y)
    if axes is None or weights.ndim <= axes or set(weights.shape[axes:]) == {1}:
        return
    forms = "a weight for each row"
    if axes > 1:
        forms += f", or for each value along the first {axes} axes of y"
    raise DataError(
        f"{name} has the shape {weights.shape}, and y the shape {y.shape}, whose losses are "
        f"weighed along {axes} {'axis' if axes == 1 else 'axes'}. Pass {forms}: an array of shape "
        f"{y.shape[:axes]}."
    )


def _axes_of_losses(model: Any, y: Any) -> int | None:
    """Returns how many axes the losses have at most, None where that is not known."""
    try:
        loss: Any = keras.losses.get(model.loss)
    except (TypeError, ValueError):  # several losses, or none that Keras knows
        return None
    function = getattr(loss, "fn", loss)
    kind: Any = function if hasattr(function, "__name__") else type(function)
    if loss is None or not kind.__module__.startswith("keras."):
        return None
    has_class_numbers = "sparse" in kind.__name__.lower()
    axes = max(y.ndim - (not has_class_numbers), 1)
    if not model.built:
        return axes if y.ndim > 1 else None
    shape: Any = getattr(model, "output_shape", None)
    return max(axes, len(shape) - 1) if _is_shape(shape) else None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(size is None or isinstance(size, int) for size in shape)
