"""`save_checkpoint` and `restore_checkpoint`: own loops continue where they were saved.

step = restore_checkpoint(directory, ...)   compares, builds, brings queues to their positions;
                                            then sets variables, queues, random numbers
while step < total:
    strategy.run(train)
    step += 100
    save_checkpoint(directory, step, ...)   waits for the device, and writes
"""

import logging
import os
import time
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any

from millrace.api.checkpoints.named_parts import NamedParts, random_part
from millrace.api.checkpoints.parts import (
    Comparison,
    check_kind,
    facts_of,
    newest_training,
    snapshot_of,
)
from millrace.api.checkpoints.saver import PATIENCE_SECONDS
from millrace.api.own_loops.running import running_call
from millrace.api.own_loops.scope import assigned_by_loops, forget_assigned
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import LOOP, DamagedError
from millrace.base.checkpoints.plain_values import NotPlainError, encode
from millrace.base.checkpoints.random_state import random_state, set_random_state, shared_seeds
from millrace.base.checkpoints.stored import Snapshot
from millrace.base.options import directory_path, whole_number
from millrace.errors import CheckpointError, OptionError
from millrace.programs.feeds.infeed_queue import queues_in_use
from millrace.programs.taps.outfeed_queue import queues_with_elements
from millrace.run.processes.agreement import process_index, texts_of_all

logger = logging.getLogger("millrace")

_ADVICE = (
    "Make the objects as they were and name all of them, or name another directory to begin a new "
    "training."
)


def save_checkpoint(
    directory: str | os.PathLike[str],
    step: int,
    *,
    keep: int | None = 3,
    values: MutableMapping[str, Any] | None = None,
    **objects: Any,
) -> None:
    """Saves a training of loops of your own, between two calls of them.

        step = millrace.restore_checkpoint("run", model=model, optimizer=optimizer, infeed=infeed)
        while step < 10_000:
            strategy.run(train)
            step += 100
            millrace.save_checkpoint("run", step, model=model, optimizer=optimizer, infeed=infeed)

    The states of the random generators of Python, NumPy, Keras and torch are saved as well. The
    files are on the disk when the call returns. With several processes all of them call it.

    Args:
        directory: of the checkpoints of one training.
        step: number of steps so far, by which checkpoints are ordered.
        keep: number of newest checkpoints to keep; None keeps all.
        values: numbers, texts, arrays, and lists, tuples and dicts of these, by name.
        objects: models, layers, optimizers, metrics, variables, queues, generators, objects with
            `get_state()` and `set_state(state)`, and lists and dicts of these, by names of your
            choice.

    Raises:
        OptionError: if an argument is invalid.
        CheckpointError: within a loop, if an object cannot be saved, if the directory has a later
            checkpoint or belongs to another training, and if it cannot be written.
    """
    path = directory_path("directory", directory)
    step = whole_number("step", step, 0)
    if keep is not None:
        keep = whole_number("keep", keep, 1)
    _check_values("save_checkpoint", values)
    _refuse_within_loops("save_checkpoint")
    parts = NamedParts(objects, values)
    warn_of_unsaved(parts)
    every = (*parts.all, random_part())
    facts, found = facts_of(every), {part.name: part.values() for part in every}
    for part in every:
        if not part.is_model:
            _refuse_objects(part.name, found[part.name])
    snapshot = snapshot_of(every, facts, found, kind=LOOP, step=step, epoch=0, epoch_step=0)
    _write(CheckpointDirectory(path, keep), snapshot)


def restore_checkpoint(
    directory: str | os.PathLike[str],
    *,
    values: MutableMapping[str, Any] | None = None,
    **objects: Any,
) -> int:
    """Restores the newest checkpoint of a training of loops of your own.

    Call it when all objects are made, and before the first loop. Later steps have the same losses
    and weights, bit by bit, as without a break. Models and optimizers that are not built yet are
    built as they were.

    Args:
        directory: of the checkpoints of one training.
        values: gets the values that were saved, by name.
        objects: by the names by which they were saved.

    Returns:
        The number of steps that was saved; 0 if there is no checkpoint.

    Raises:
        CheckpointError: within a loop, and if the objects or the data differ from those that were
            saved: before any variable is changed.
    """
    path = directory_path("directory", directory)
    _check_values("restore_checkpoint", values)
    _refuse_within_loops("restore_checkpoint")
    parts = NamedParts(objects, values)
    forget_earlier()
    for queue in parts.infeeds.values():
        queue.watch()
    begin = time.perf_counter()
    saved = newest_training(CheckpointDirectory(path), LOOP)
    if saved is None:
        return 0
    comparison = Comparison(str(saved.checkpoint.path), _ADVICE)
    before = random_state()
    try:
        saved.check(parts.all, comparison)
        parts.build(saved, comparison)
        draws = parts.bring_to_positions(saved, comparison)
    except BaseException:
        set_random_state(before)
        raise
    saved.warn_of_values()
    saved.restore((*parts.all, random_part(draws)))
    where, step = saved.checkpoint.path, saved.checkpoint.manifest.step
    seconds = time.perf_counter() - begin
    logger.info("Continues from %s, step %d. Restored in %.2f s.", where, step, seconds)
    return step


# Writing.

_locks: dict[str, ExitStack] = {}  # of directories that this process writes to, until it ends


def _write(directory: CheckpointDirectory, snapshot: Snapshot) -> None:
    failure = ""
    if process_index() == 0:
        try:
            _check_is_ours(directory, snapshot.step)
            directory.write(snapshot)
        except CheckpointError as error:
            failure = str(error)
    if failure := next(filter(None, texts_of_all(failure, PATIENCE_SECONDS)), ""):
        raise CheckpointError(failure)


def _check_is_ours(directory: CheckpointDirectory, step: int) -> None:
    key = os.path.realpath(directory.path)
    if key not in _locks:
        lock = ExitStack()
        lock.enter_context(directory.locked())
        _locks[key] = lock
        for newest in directory.steps()[-1:]:
            try:
                check_kind(directory.open(newest), LOOP)
            except DamagedError:
                pass
            except CheckpointError:
                _locks.pop(key).close()
                raise
    later = [each for each in directory.steps() if each > step]
    if later:
        raise CheckpointError(
            f"{directory.path} has a checkpoint of step {later[-1]}, and step {step} is to be "
            "saved: a later run would continue from the wrong one. Call restore_checkpoint() "
            "before the first loop and count on from its result, or name another directory."
        )


# Arguments.


def _check_values(function: str, values: Any) -> None:
    if values is None:
        return
    if not isinstance(values, MutableMapping) or not all(isinstance(key, str) for key in values):
        raise OptionError(
            f"values of {function}() is a dict of names and values. Received: {values!r} of type "
            f"{type(values).__name__}. Set values={{'name': value}}."
        )


def _refuse_within_loops(function: str) -> None:
    if (name := running_call()) is not None:
        raise CheckpointError(
            f"{function}() was called while {name} is running or being traced, when variables and "
            "queues have no values that belong together. Call it in the Python code around, when "
            "the call has returned."
        )


def _refuse_objects(kind: str, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        try:
            encode(value, [])
        except NotPlainError as error:
            raise CheckpointError(
                f"{name} of {kind} cannot be saved: it contains {error}. Use numbers, texts, "
                "arrays, and lists, tuples and dicts of these."
            ) from error


_SHOWN = 5  # names in a message
_warned: set[int] = set()  # addresses of objects


def warn_of_unsaved(parts: NamedParts) -> None:
    """Warns once of each variable that loops assign, and of each queue, that is not saved."""
    saved = {id(variable) for own in parts.variables.values() for variable in own}
    saved |= {id(queue) for queue in (*parts.infeeds.values(), *parts.outfeeds.values())}
    saved |= {id(variable) for variable in shared_seeds().values()}
    new = [each for each in assigned_by_loops() if id(each) not in saved]
    if names := [each.path for each in _not_warned(new)]:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        logger.warning(
            "Variables that loops assign are not saved: %s%s. If later steps depend on them, name "
            "their owners: save_checkpoint(..., metric=metric).",
            ", ".join(names[:_SHOWN]),
            more,
        )
    for queue in _not_warned(each for each in queues_in_use() if id(each) not in saved):
        logger.warning(
            "The position of %r is not saved. Name it: save_checkpoint(..., infeed=queue).", queue
        )
    for queue in _not_warned(each for each in queues_with_elements() if id(each) not in saved):
        logger.warning(
            "%r has elements that nobody has read, and is not saved. Call dequeue() before, or "
            "name it: save_checkpoint(..., outfeed=queue).",
            queue,
        )


def forget_earlier() -> None:
    """Takes variables and queues that loops have used so far for those of another training."""
    forget_assigned()
    _warned.update(map(id, (*queues_in_use(), *queues_with_elements())))


def _not_warned(objects: Iterable[object]) -> list:  # type: ignore[type-arg]
    new = [each for each in objects if id(each) not in _warned]
    _warned.update(map(id, new))
    return new
