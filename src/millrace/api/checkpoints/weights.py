"""The weights of a checkpoint for a model of the user's, made by code of the user's."""

import os
from collections.abc import Sequence

import keras
import numpy as np

from millrace._compat.keras_loops import variables_of
from millrace.api.checkpoints.model_values import WEIGHTS
from millrace.api.checkpoints.variables import layout, put
from millrace.base.checkpoints.arrays import ArrayLayout
from millrace.base.checkpoints.directory import damaged, opened_checkpoint
from millrace.base.checkpoints.manifest import FIT, DamagedError
from millrace.base.checkpoints.stored import StoredCheckpoint
from millrace.base.options import directory_path
from millrace.errors import CheckpointError


def restore_weights(
    model: keras.Model, directory: str | os.PathLike[str], step: int | None = None
) -> int:
    """Puts the weights of a checkpoint into a model of the same layers.

        model = build_model()
        millrace.restore_weights(model, "runs/7/checkpoints")
        model.save("model.keras")

    To continue with a training, call `fit` with `millrace.callbacks.Checkpoint` instead.

    Args:
        model: that has been built; compiled or not, with a strategy or without.
        directory: of the checkpoints.
        step: of one of them; None is the newest.

    Returns:
        The step of the checkpoint.

    Raises:
        CheckpointError: if there is no such checkpoint, it is damaged, or it is of a model with
            other weights.
    """
    checkpoint = opened_checkpoint(directory_path("directory", directory), step)
    _put_weights(model, checkpoint)
    return checkpoint.manifest.step


def _put_weights(model: keras.Model, checkpoint: StoredCheckpoint) -> None:
    values = _values(checkpoint)
    for role in WEIGHTS:
        before, now = layout(values[role]), layout(variables_of(model, role))
        if before != now:
            raise CheckpointError(
                f"Model {model.name!r} has other {role.replace('_', '-')} variables than "
                f"{checkpoint.path}: {_difference(model, role, before, now)}. Nothing has been "
                "changed. Build the model, with its input shapes, as it was when the checkpoint "
                "was written."
            )
    for role in WEIGHTS:
        put(variables_of(model, role), values[role])


def _values(checkpoint: StoredCheckpoint) -> dict[str, list[np.ndarray]]:
    if checkpoint.manifest.kind != FIT:
        raise CheckpointError(
            f"{checkpoint.path} is not of a fit, and has the values of a loop of its own. Restore "
            "it in the program that has written it, and call model.save()."
        )
    try:
        values = checkpoint.values()[0]["model"]
        for role in WEIGHTS:
            assert all(isinstance(each, np.ndarray) for each in values[role])  # noqa: S101
        return values
    except DamagedError as error:
        raise damaged(checkpoint.path, checkpoint.manifest.step, error) from error
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path} holds no fit: {error!r}.") from error


def _difference(
    model: keras.Model, role: str, before: Sequence[ArrayLayout], now: Sequence[ArrayLayout]
) -> str:
    if len(before) != len(now):
        return f"it has {len(now)} of them, and the checkpoint {len(before)}"
    index = next(i for i, (one, other) in enumerate(zip(before, now, strict=True)) if one != other)
    (shape, dtype), (own_shape, own_dtype) = before[index], now[index]
    path = variables_of(model, role)[index].path
    return f"{path} is {own_dtype}{list(own_shape)}, and {dtype}{list(shape)} in the checkpoint"
