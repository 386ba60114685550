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
from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from typing import Any

import jax

from millrace.api.own_loop_checkpoints.comparison import (
    ADVICE,
    build,
    check_names,
    check_same_parts,
    check_same_variables,
    forget_earlier,
    has_unbuilt,
    warn_of_unsaved,
)
from millrace.api.own_loop_checkpoints.parts import NamedParts, is_of_metrics, set_state, state_of
from millrace.api.own_loops.copies import copies_to_save, put_saved
from millrace.api.own_loops.running import running_call
from millrace.base.checkpoints.directory import CheckpointDirectory
from millrace.base.checkpoints.manifest import DamagedError
from millrace.base.checkpoints.plain_values import NotPlainError, encode, host_copy
from millrace.base.checkpoints.random_state import (
    random_state,
    set_random_state,
    set_seeds,
    shared_seeds,
)
from millrace.base.checkpoints.stored import Snapshot, StoredCheckpoint
from millrace.base.options import directory_path, whole_number
from millrace.errors import CheckpointError, OptionError
from millrace.run.processes.agreement import own_copy, process_index, texts_of_all
from millrace.run.resuming.restoring import LOOP, newest_checkpoint, warn_of_values
from millrace.run.resuming.schedule import PATIENCE_SECONDS

logger = logging.getLogger("millrace")


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
    values = _values("save_checkpoint", values)
    _refuse_within_loops("save_checkpoint")
    parts = NamedParts(objects)
    warn_of_unsaved(parts)
    everything = [variable for own in parts.variables.values() for variable in own]
    for value in (variable.value for variable in everything):
        if isinstance(value, jax.Array) and value.is_fully_addressable:
            value.copy_to_host_async()
    others = {
        "facts": parts.facts(),
        "copies": {name: [copies_to_save(v) for v in own] for name, own in parts.variables.items()},
        "infeeds": {name: queue.position() for name, queue in parts.infeeds.items()},
        "outfeeds": {name: queue.unread() for name, queue in parts.outfeeds.items()},
        "states": {name: state_of(owner) for name, owner in parts.states.items()},
        "random": random_state(),
        "seeds": {name: copies_to_save(seed) for name, seed in shared_seeds().items()},
        "values": dict(values),
    }
    for kind in ("infeeds", "outfeeds", "states", "values"):
        for name, value in others[kind].items():
            _refuse_objects(kind, name, value)
    model = {
        name: [host_copy(own_copy(variable.value)) for variable in own]
        for name, own in parts.variables.items()
    }
    snapshot = Snapshot(step=step, epoch=0, epoch_step=0, kind=LOOP, model=model, others=others)
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
    values = _values("restore_checkpoint", values)
    _refuse_within_loops("restore_checkpoint")
    parts = NamedParts(objects)
    forget_earlier()
    for queue in parts.infeeds.values():
        queue.watch()
    begin = time.perf_counter()
    found = newest_checkpoint(CheckpointDirectory(path))
    if found is None:
        return 0
    checkpoint, (model, others) = found
    _check_kind(checkpoint)
    before = random_state()
    try:
        parts, draws = _prepared(checkpoint, others, parts, objects, values)
    except BaseException:
        set_random_state(before)
        raise
    warn_of_values(checkpoint)
    _put(parts, model, others)
    for name, state in others["states"].items():
        set_state(parts.states[name], state)
    for name, elements in others["outfeeds"].items():
        parts.outfeeds[name].put_back(elements)
    (set_seeds if draws else set_random_state)(others["random"])
    for name, seed in shared_seeds().items():
        if name in others["seeds"]:
            put_saved(seed, others["random"][name], others["seeds"][name])
    values.update(others["values"])
    step, seconds = checkpoint.manifest.step, time.perf_counter() - begin
    logger.info("Continues from %s, step %d. Restored in %.2f s.", checkpoint.path, step, seconds)
    return step


def _prepared(
    checkpoint: StoredCheckpoint,
    others: dict[str, Any],
    parts: NamedParts,
    objects: dict[str, Any],
    values: MutableMapping[str, Any],
) -> tuple[NamedParts, bool]:
    """Compares everything, builds objects, and brings infeed queues to their positions.

    Returns:
        The objects, built; and whether data draws from the random generators that all share.
    """
    where, facts = str(checkpoint.path), others["facts"]
    check_same_parts(facts, parts, where)
    if others["values"] and not values and values is _NOTHING:
        check_names("value", others["values"], [], where)
    for name, queue in parts.infeeds.items():
        with _naming(name, where):
            queue.check_position(others["infeeds"][name], where)
    while has_unbuilt(facts, parts):
        build(facts, parts, where)
        parts = NamedParts(objects)
    check_same_variables(facts, parts, where)
    draws = False
    for name, queue in parts.infeeds.items():
        with _naming(name, where):
            draws |= queue.restore(others["infeeds"][name])
    return parts, draws


def _put(parts: NamedParts, model: dict[str, Any], others: dict[str, Any]) -> None:
    for name, variables in parts.variables.items():
        saved = model.get(name, [])
        shapes = [each[1:] for each in others["facts"]["variables"].get(name, [])]
        own = [[list(v.shape), str(v.dtype)] for v in variables]
        if is_of_metrics(name) and own != shapes:
            continue  # evaluations make other ones, and begin at zero
        for variable, value, copies in zip(variables, saved, others["copies"][name], strict=True):
            put_saved(variable, value, copies)


@contextmanager
def _naming(name: str, where: str) -> Iterator[None]:
    """Adds the name of a queue and the checkpoint to errors."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(
            f"This training cannot continue from {where}: {name}: {error}. Nothing has been "
            f"changed but the position in the data. {ADVICE}"
        ) from error


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
                _check_kind(directory.open(newest))
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


def _check_kind(checkpoint: StoredCheckpoint) -> None:
    if checkpoint.manifest.kind != LOOP:
        raise CheckpointError(
            f"{checkpoint.path} is of a fit: callbacks.Checkpoint has written it. Name another "
            "directory for your own loop."
        )


# Arguments.

_NOTHING: dict[str, Any] = {}


def _values(function: str, values: Any) -> MutableMapping[str, Any]:
    if values is None:
        return _NOTHING
    if not isinstance(values, MutableMapping) or not all(isinstance(key, str) for key in values):
        raise OptionError(
            f"values of {function}() is a dict of names and values. Received: {values!r} of type "
            f"{type(values).__name__}. Set values={{'name': value}}."
        )
    return values


def _refuse_within_loops(function: str) -> None:
    if (name := running_call()) is not None:
        raise CheckpointError(
            f"{function}() was called while {name} is running or being traced, when variables and "
            "queues have no values that belong together. Call it in the Python code around, when "
            "the call has returned."
        )


def _refuse_objects(kind: str, name: str, value: object) -> None:
    try:
        encode(value, [], copy=False)
    except NotPlainError as error:
        raise CheckpointError(
            f"{name} of {kind} cannot be saved: it contains {error}. Use numbers, texts, arrays, "
            "and lists, tuples and dicts of these."
        ) from error
