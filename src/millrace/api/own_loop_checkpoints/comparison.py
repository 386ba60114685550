"""The objects of a loop that continues, compared with those that were saved, or that are not."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import keras

from millrace.api.own_loop_checkpoints.parts import NamedParts, innermost, is_of_metrics
from millrace.api.own_loops.scope import assigned_by_loops, forget_assigned
from millrace.base.checkpoints.random_state import shared_seeds
from millrace.errors import CheckpointError
from millrace.programs.feeds.infeed_queue import queues_in_use
from millrace.programs.taps.outfeed_queue import queues_with_elements
from millrace.run.resuming.model_values import check_optimizer, check_variables, difference

ADVICE = (
    "Make the objects as they were and name all of them, or name another directory to begin a new "
    "training."
)


def check_same_parts(saved: Mapping[str, Any], parts: NamedParts, where: str) -> None:
    """Refuses objects other than those that were saved, and builds those that are not built.

    Args:
        saved: facts of the parts that were saved.
        parts: that are to continue.
        where: of the checkpoint, for the message.

    Raises:
        CheckpointError: naming the first difference.
    """
    own = parts.facts()
    check_names("object", saved["owners"], own["owners"], where)
    for kind in ("infeed queue", "outfeed queue", "state"):
        check_names(kind, saved["others"][kind], own["others"][kind], where)
    for name, now in own["others"]["state"].items():
        before = saved["others"]["state"][name]
        if before != now:
            raise difference(name, before, now, where, ADVICE)
    for name, now in own["owners"].items():
        before = saved["owners"][name]
        if "settings" in now and "settings" in before:
            check_optimizer(before["settings"], now["settings"], name, where, ADVICE)
        elif before["kind"] != now["kind"]:
            raise difference(name, before["kind"], now["kind"], where, ADVICE)


def check_same_variables(saved: Mapping[str, Any], parts: NamedParts, where: str) -> None:
    """Refuses variables of other shapes than those that were saved.

    Raises:
        CheckpointError: naming the first difference.
    """
    own = parts.facts()["variables"]
    for name, before in saved["variables"].items():
        if not is_of_metrics(name):
            check_variables(before, own.get(name, []), f"variable of {name}", where, ADVICE)


def has_unbuilt(saved: Mapping[str, Any], parts: NamedParts) -> bool:
    """Whether an object has been built when it was saved, and is not built here."""
    return any(True for _ in _unbuilt(saved, parts))


def build(saved: Mapping[str, Any], parts: NamedParts, where: str) -> None:
    """Builds the first object that is not built, as it was: loops build theirs in the first call.

    Raises:
        CheckpointError: if it cannot be built.
    """
    name, owner = next(_unbuilt(saved, parts))
    facts = saved["owners"][name]
    try:
        if isinstance(owner, keras.optimizers.Optimizer):
            owner.build([parts.variables[each][index] for each, index in facts["trains"]])
        else:
            owner.build_from_config(facts["build"])
        is_built = bool(owner.built)
    except Exception as error:  # of layers of the user's own, of any kind
        raise _not_built(name, owner, where) from error
    if not is_built:
        raise _not_built(name, owner, where)


def check_names(kind: str, saved: Iterable[str], own: Iterable[str], where: str) -> None:
    """Refuses names that were not saved, or are not given.

    Raises:
        CheckpointError: naming the first one.
    """
    saved, own = list(saved), list(own)
    missing = [name for name in saved if name not in own]
    new = [name for name in own if name not in saved]
    if missing or new:
        name = (missing or new)[0]
        there, here = ("saved", "not named") if missing else ("not saved", "named")
        raise difference(f"{kind} {name}", there, here, where, ADVICE)


def _unbuilt(saved: Mapping[str, Any], parts: NamedParts) -> Any:
    layers_first = sorted(
        parts.owners.items(), key=lambda item: isinstance(item[1], keras.optimizers.Optimizer)
    )
    for name, owner in layers_first:
        facts = saved["owners"][name]
        if isinstance(owner, keras.optimizers.Optimizer):
            if facts.get("trains") != [] and not innermost(owner).built:
                yield name, owner
        elif isinstance(owner, keras.layers.Layer) and facts["build"] and not owner.built:
            yield name, owner


def _not_built(name: str, owner: object, where: str) -> CheckpointError:
    call = f"{name}.build(input_shape)"
    if isinstance(owner, keras.optimizers.Optimizer):
        call = f"{name}.build(model.trainable_variables)"
    return CheckpointError(
        f"This training cannot continue from {where}: {name} was built there, is not built here, "
        f"and cannot be built from what was saved. Nothing has been changed. Call {call} before "
        "restore_checkpoint()."
    )


logger = logging.getLogger("millrace")

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
