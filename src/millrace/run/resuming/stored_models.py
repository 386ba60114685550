"""The weights of a checkpoint for a model of the user's, made by code of the user's."""

import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import DamagedError
from millrace.base.checkpoints.stored import StoredCheckpoint
from millrace.base.options import directory_path
from millrace.errors import CheckpointError
from millrace.run.resuming.restoring import FIT

_WEIGHTS = ("trainable", "non_trainable")


def open_checkpoint(directory: str | os.PathLike[str], step: int | None = None) -> StoredCheckpoint:
    """Returns a checkpoint, and changes nothing in the directory.

    Args:
        directory: of the checkpoints.
        step: of one of them; None is the newest.

    Raises:
        CheckpointError: if there is none, or its manifest is damaged.
    """
    checkpoints = CheckpointDirectory(directory)
    steps = checkpoints.steps()
    if not steps:
        raise CheckpointError(
            f"There are no checkpoints in {checkpoints.path}. Name the directory of a "
            "Checkpoint(directory)."
        )
    if step is None:
        step = steps[-1]
    if step not in steps:
        raise CheckpointError(
            f"There is no checkpoint of step {step} in {checkpoints.path}. There are those of "
            f"steps {', '.join(map(str, steps))}."
        )
    try:
        return checkpoints.open(step)
    except DamagedError as error:
        raise _damaged(step, checkpoints, error) from error


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
    checkpoint = open_checkpoint(directory_path("directory", directory), step)
    _put_weights(model, _values(checkpoint), checkpoint)
    return checkpoint.manifest.step


def _values(checkpoint: StoredCheckpoint) -> dict[str, list[np.ndarray]]:
    if checkpoint.manifest.kind != FIT:
        raise CheckpointError(
            f"{checkpoint.path} is not of a fit, and has the values of a loop of its own. Restore "
            "it in the program that has written it, and call model.save()."
        )
    try:
        values, _ = checkpoint.values()
        for role in _WEIGHTS:
            assert all(isinstance(each, np.ndarray) for each in values[role])  # noqa: S101
        return dict(values)
    except DamagedError as error:
        directory = CheckpointDirectory(checkpoint.path.parent)
        raise _damaged(checkpoint.manifest.step, directory, error) from error
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path} holds no fit: {error!r}.") from error


def _put_weights(
    model: keras.Model, values: dict[str, list[np.ndarray]], checkpoint: StoredCheckpoint
) -> None:
    own: dict[str, list[keras.Variable]] = {
        "trainable": model.trainable_variables,
        "non_trainable": model.non_trainable_variables,
    }
    for role in _WEIGHTS:
        before, now = _layout(values[role]), _layout(own[role])
        if before == now:
            continue
        different = next(
            (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), 0
        )
        if len(before) != len(now):
            reason = f"it has {len(now)} of them, and the checkpoint {len(before)}"
        else:
            path, (shape, dtype) = own[role][different].path, now[different]
            reason = f"{path} is {dtype}{list(shape)}, and {before[different][1]}"
            reason += f"{list(before[different][0])} in the checkpoint"
        raise CheckpointError(
            f"Model {model.name!r} has other {role.replace('_', '-')} variables than "
            f"{checkpoint.path}: {reason}. Nothing has been changed. Build the model, with its "
            "input shapes, as it was when the checkpoint was written."
        )
    for role in _WEIGHTS:
        for variable, value in zip(own[role], values[role], strict=True):
            variable.assign(value)


def _layout(values: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(value.shape), str(value.dtype)) for value in values]


def _damaged(step: int, directory: CheckpointDirectory, error: DamagedError) -> CheckpointError:
    others = [str(each) for each in directory.steps() if each != step]
    left = f"There are those of steps {', '.join(others)}" if others else "There is no other one"
    return CheckpointError(
        f"The checkpoint of step {step} in {directory.path} is damaged: {error}. {left}."
    )
