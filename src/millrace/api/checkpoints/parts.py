"""A training as parts with names: a fit and an own loop are saved, and continue, by the same steps.

Each owner lists its parts, and the rest is the same for both:

    callbacks.Checkpoint                      save_checkpoint(...), restore_checkpoint(...)
    model, metrics, callbacks, data, ...      objects, queues, generators, values
             |                                         |
             +------------------ Part -----------------+
                facts()         what it is
                values()        what it has                       all parts: a Snapshot, to the disk
                check(...)      before anything of the training has changed
                restore(...)    puts the values back
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millrace.api.checkpoints.saver import PATIENCE_SECONDS
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import FIT, LOOP
from millrace.base.checkpoints.plain_values import copied
from millrace.base.checkpoints.stored import Snapshot, StoredCheckpoint
from millrace.errors import CheckpointError
from millrace.run.processes.agreement import texts_of_all

logger = logging.getLogger("millrace")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Words for a training that is compared with what was saved."""

    where: str  # the path of the checkpoint
    advice: str  # the end of each message

    def difference(self, what: str, before: object, now: object) -> CheckpointError:
        """Returns the error of a training that cannot continue from a checkpoint."""
        return CheckpointError(
            f"This training cannot continue from {self.where}: {what} is {now} here and was "
            f"{before} there. Nothing has been changed. {self.advice}"
        )

    def check_names(self, kind: str, saved: Collection[str], own: Collection[str]) -> None:
        """Refuses names that were not saved, or are not given: raises the first difference."""
        for name in (*saved, *own):
            if name not in own:
                raise self.difference(f"{kind} {name}", "saved", "not named")
            if name not in saved:
                raise self.difference(f"{kind} {name}", "not saved", "named")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a training, and what is done with it."""

    name: str
    values: Callable[[], Any]  # plain values and arrays; with several processes, all call it
    restore: Callable[[Any], object]  # puts back values that were saved
    facts: Callable[[], Any] | None = None  # plain values: what it is
    # Raises a CheckpointError for facts, or values, of another part; nothing has changed then.
    check: Callable[[Any, Any, Comparison], None] | None = None
    is_model: bool = False  # whether values that are not finite are noted


def group(kind: str, parts: Mapping[str, Part]) -> Part:
    """Returns parts of one kind, with names that the user has chosen, as one part."""

    def check(facts: Any, values: Any, comparison: Comparison) -> None:
        comparison.check_names(kind, facts, parts)
        for name, part in parts.items():
            if part.check is not None:
                part.check(facts[name], values[name], comparison)

    def restore(values: Any) -> None:
        for name, part in parts.items():
            part.restore(values[name])

    return Part(
        kind,
        lambda: {name: part.values() for name, part in parts.items()},
        restore,
        lambda: {name: part.facts and part.facts() for name, part in parts.items()},
        check,
        is_model=any(part.is_model for part in parts.values()),
    )


def facts_of(parts: Iterable[Part]) -> dict[str, Any]:
    """Returns the facts of parts by name."""
    return {part.name: part.facts() for part in parts if part.facts is not None}


def kept_values(parts: Iterable[Part]) -> dict[str, Any]:
    """Returns the values of parts by name, which stay as they are while the training goes on."""
    return {p.name: p.values() if p.is_model else copied(p.values()) for p in parts}


def snapshot_of(
    parts: Iterable[Part], facts: Mapping[str, Any], values: Mapping[str, Any], **place: Any
) -> Snapshot:
    """Returns what is written of parts: facts and values by name, and further fields.

    The values of models are copies already, and the rest is copied here.
    """
    of_model = {part.name for part in parts if part.is_model}
    others = {name: value for name, value in values.items() if name not in of_model}
    return Snapshot(
        model={name: value for name, value in values.items() if name in of_model},
        others={"facts": facts, "values": copied(others)},
        **place,
    )


@dataclass(frozen=True, slots=True)
class SavedTraining:
    """What a checkpoint has of a training: facts and values of its parts, by name."""

    checkpoint: StoredCheckpoint
    facts: dict[str, Any]
    values: dict[str, Any]

    def check(self, parts: Iterable[Part], comparison: Comparison) -> None:
        """Refuses a checkpoint of other parts: raises the first difference."""
        for part in parts:
            if part.check is not None:
                part.check(self.facts.get(part.name), self.values[part.name], comparison)

    def restore(self, parts: Iterable[Part]) -> None:
        """Puts back the values of parts."""
        for part in parts:
            part.restore(self.values[part.name])

    def warn_of_values(self) -> None:
        """Warns of values that are NaN or infinite."""
        if not self.checkpoint.manifest.is_finite:
            path = self.checkpoint.path
            logger.warning(
                "Values of the model in %s are NaN or infinite. Remove the checkpoints after the "
                "last good one: millrace checkpoint list %s shows them.",
                path,
                path.parent,
            )


def newest_training(
    directory: CheckpointDirectory,
    kind: str,
    check_form: Callable[[SavedTraining], None] = lambda saved: None,
) -> SavedTraining | None:
    """Returns the newest checkpoint, the same in all processes of a run.

    Raises:
        CheckpointError: if it is of the other kind, or processes find different ones, or
            `check_form` raises a ValueError.
    """
    found = directory.newest()
    own = "none" if found is None else f"step {found[0].manifest.step}"
    steps = dict.fromkeys(texts_of_all(own, PATIENCE_SECONDS))
    if len(steps) > 1:
        raise CheckpointError(
            f"The processes of this run find different checkpoints in {directory.path}: "
            f"{', '.join(steps)}. Name a directory that all of them share."
        )
    if found is None:
        return None
    checkpoint, (model, others) = found
    check_kind(checkpoint, kind)
    try:
        saved = SavedTraining(checkpoint, others["facts"], {**model, **others["values"]})
        check_form(saved)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{checkpoint.path} holds no {kind} of this millrace: {error}. Move it out of "
            f"{directory.path}."
        ) from error
    return saved


def check_kind(checkpoint: StoredCheckpoint, kind: str) -> None:
    """Refuses a checkpoint that something else has written: raises a CheckpointError."""
    if checkpoint.manifest.kind == kind:
        return
    what, place = {
        FIT: ("is not of a fit: save_checkpoint()", "in Checkpoint(directory)"),
        LOOP: ("is of a fit: callbacks.Checkpoint", "for your own loop"),
    }[kind]
    raise CheckpointError(
        f"{checkpoint.path} {what} has written it. Name another directory {place}."
    )
