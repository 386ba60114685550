"""Models that are made from a checkpoint, and weights of a checkpoint for a model of the user's.

The configuration in a checkpoint is data: Keras makes its own layers from it, and those that the
running program has registered. Code in it is refused.
"""

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from millrace.base.arguments import checked
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import DamagedError
from millrace.base.checkpoints.stored import StoredCheckpoint
from millrace.base.options import directory_path
from millrace.errors import CheckpointError
from millrace.run.resuming.restoring import FIT

_LONGEST = 300  # characters of an error of Keras, which may end with a whole configuration
_WEIGHTS = ("trainable", "non_trainable")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model made from a checkpoint."""

    model: keras.Model
    not_compiled: str  # why it has no optimizer; empty if it has one


def configuration_of(model: keras.Model) -> str | None:
    """Returns the configuration of a model, with its optimizer; None if Keras cannot write one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what a configuration leaves out
        try:
            return model.to_json()
        except Exception:  # of a get_config that anybody may have written
            return None


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


def model_of(checkpoint: StoredCheckpoint) -> StoredModel:
    """Makes the model of a checkpoint, with its weights and, if it can be compiled, its optimizer.

    Raises:
        CheckpointError: if the checkpoint is damaged, or the model cannot be made without its code.
    """
    values, others = _values(checkpoint)
    config = others.get("config")
    if not isinstance(config, str):
        raise _needs_code(checkpoint, "its class has no get_config() that Keras could call")
    try:
        described = json.loads(config)
        compiling = described.pop("compile_config", None)
        model: Any = keras.saving.deserialize_keras_object(described, safe_mode=True)
        if not isinstance(model, keras.Model):
            raise TypeError(f"its configuration describes a {type(model).__name__}")
    except Exception as error:  # Keras and the layers have many
        raise _needs_code(checkpoint, _short(error)) from error
    _put_weights(model, values, checkpoint)
    return StoredModel(model, _compile(model, compiling, values.get("optimizer", [])))


@checked
def restore_weights(
    model: keras.Model, directory: str | os.PathLike[str], step: int | None = None
) -> int:
    """Puts the weights of a checkpoint into a model of the same layers.

        model = build_model()
        millrace.restore_weights(model, "runs/7/checkpoints")
        model.save("model.keras")

    To go on with a training, call `fit` with `millrace.callbacks.Checkpoint` instead. `millrace
    checkpoint export` does the same as these lines for models without layers of your own.

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
    _put_weights(model, _values(checkpoint)[0], checkpoint)
    return checkpoint.manifest.step


def _values(checkpoint: StoredCheckpoint) -> tuple[dict[str, list[np.ndarray]], dict[str, Any]]:
    if checkpoint.manifest.kind != FIT:
        raise CheckpointError(
            f"{checkpoint.path} is not of a fit, and has the values of a loop of its own. Restore "
            "it in the program that has written it, and call model.save()."
        )
    try:
        values, others = checkpoint.values()
        for role in _WEIGHTS:
            assert all(isinstance(each, np.ndarray) for each in values[role])  # noqa: S101
        return dict(values), dict(others)
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


def _compile(model: Any, config: Any, values: Sequence[np.ndarray]) -> str:
    """Compiles a model, and sets the values of its optimizer.

    Returns:
        Why the model has no optimizer; empty if it has one.
    """
    if not config:
        return "its configuration has no optimizer"
    try:
        model.compile_from_config(config)
    except Exception as error:  # a loss of the user's own, for example
        return _short(error)
    variables = list(getattr(model.optimizer, "variables", []))
    if _layout(variables) != _layout(values):
        model.compiled = False
        return "its optimizer has other variables than the checkpoint"
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return ""


def _layout(values: Sequence[Any]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(value.shape), str(value.dtype)) for value in values]


def _short(error: Exception) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    text = text.partition("Full object config")[0].strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _damaged(step: int, directory: CheckpointDirectory, error: DamagedError) -> CheckpointError:
    others = [str(each) for each in directory.steps() if each != step]
    left = f"There are those of steps {', '.join(others)}" if others else "There is no other one"
    return CheckpointError(
        f"The checkpoint of step {step} in {directory.path} is damaged: {error}. {left}."
    )


def _needs_code(checkpoint: StoredCheckpoint, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The model of {checkpoint.path} cannot be made without its own code: "
        f"{reason.rstrip('.')}. Build it in Python, and call millrace.restore_weights(model, "
        f"{str(checkpoint.path.parent)!r}, step={checkpoint.manifest.step}), then model.save()."
    )
