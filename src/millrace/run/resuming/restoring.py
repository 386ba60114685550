"""The newest checkpoint of a fit, compared with the fit that continues from it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.stored import StoredCheckpoint
from millrace.errors import CheckpointError
from millrace.programs.feeds.source_position import SourceState
from millrace.run.fit.checkpoint_places import EpochPosition
from millrace.run.fit.controller import Controller
from millrace.run.processes.agreement import texts_of_all
from millrace.run.resuming.model_values import check_same_model, has_same_metrics
from millrace.run.resuming.saved_values import check_fit_values
from millrace.run.resuming.schedule import PATIENCE_SECONDS

logger = logging.getLogger("millrace")

FIT, LOOP = "fit", "loop"  # kinds of checkpoints


@dataclass(frozen=True, slots=True)
class SavedFit:
    """The values of a checkpoint of a fit."""

    checkpoint: StoredCheckpoint
    model: dict[str, Any]  # values by role
    others: dict[str, Any]

    @property
    def epoch(self) -> int:
        """The epoch that continues, from 0."""
        return self.checkpoint.manifest.epoch

    @property
    def position(self) -> EpochPosition:
        """The place in the data."""
        values = dict(self.others["position"])
        values["passes"] = tuple(values["passes"])
        if values["source"] is not None:
            source = values["source"]
            values["source"] = SourceState(source["drawn"], source["state"])
        return EpochPosition(**{each.name: values[each.name] for each in fields(EpochPosition)})


def newest_checkpoint(
    directory: CheckpointDirectory,
) -> tuple[StoredCheckpoint, tuple[Any, Any]] | None:
    """Returns the newest checkpoint and its values, the same in all processes of a run.

    Raises:
        CheckpointError: if processes find different ones.
    """
    found = directory.newest()
    own = "none" if found is None else f"step {found[0].manifest.step}"
    steps = dict.fromkeys(texts_of_all(own, PATIENCE_SECONDS))
    if len(steps) > 1:
        raise CheckpointError(
            f"The processes of this run find different checkpoints in {directory.path}: "
            f"{', '.join(steps)}. Name a directory that all of them share."
        )
    return found


def newest_fit(directory: CheckpointDirectory) -> SavedFit | None:
    """Returns the newest checkpoint, the same in all processes of a run.

    Raises:
        CheckpointError: if it is not of a fit, or processes find different ones.
    """
    found = newest_checkpoint(directory)
    if found is None:
        return None
    checkpoint, (model, others) = found
    if checkpoint.manifest.kind != FIT:
        raise CheckpointError(
            f"{checkpoint.path} is not of a fit: save_checkpoint() has written it. Name another "
            "directory in Checkpoint(directory)."
        )
    try:
        check_fit_values(checkpoint.manifest, model, others)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{checkpoint.path} holds no fit of this millrace: {error}. Move it out of "
            f"{directory.path}."
        ) from error
    return SavedFit(checkpoint, model, others)


def check_continues(saved: SavedFit, controller: Controller, data: Mapping[str, str]) -> None:
    """Refuses a checkpoint of another model, optimizer or data set.

    Args:
        saved: the checkpoint.
        controller: of the model.
        data: that the epoch iterator says of itself.

    Raises:
        CheckpointError: naming the difference.
    """
    where = str(saved.checkpoint.path)
    check_same_model(saved.others["facts"], controller.model, where)
    for name, now in data.items():
        before = saved.others["data"].get(name, "unknown")
        if before != now and "unknown" not in (before, now):
            raise CheckpointError(
                f"This training cannot continue from {where}: {name} was {before} there and is "
                f"{now} here. Nothing has been changed. Call fit with the same data and "
                "batch_size, or name another directory in Checkpoint(directory)."
            )
    warn_of_values(saved.checkpoint)
    if saved.position.epoch_step and not has_same_metrics(saved.others["facts"], controller.model):
        logger.warning(
            "The metrics are other ones than in %s: those of its epoch begin at zero.", where
        )


def warn_of_values(checkpoint: StoredCheckpoint) -> None:
    """Warns of values that are NaN or infinite."""
    if not checkpoint.manifest.is_finite:
        logger.warning(
            "Values of the model in %s are NaN or infinite. Remove the checkpoints after the last "
            "good one: millrace checkpoint list %s shows them.",
            checkpoint.path,
            checkpoint.path.parent,
        )


def note_options(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Logs options that change the numbers of later updates."""
    for name, value in now.items():
        if before.get(name, value) != value:
            logger.warning(
                "%s was %s when the checkpoint was written, and is %s now: later updates are not "
                "those of a training without a break.",
                name,
                before[name],
                value,
            )
