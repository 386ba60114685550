"""The objects of a loop that continues, compared with those that were saved."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

from millrace.api.own_loop_checkpoints.parts import NamedParts, innermost, is_of_metrics
from millrace.errors import CheckpointError
from millrace.run.resuming.model_values import check_optimizer, check_variables, difference

ADVICE = (
    "Make the objects as they were and name all of them, or name another directory to begin a new "
    "training."
)


def check_same_parts(saved: Mapping[str, Any], parts: NamedParts, where: str) -> None:
    """Refuses objects other than those that were saved, and builds those that are not built.

    Args:
        saved: facts of the parts that were saved.
        parts: that are to go on.
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
        f"This training cannot go on from {where}: {name} was built there, is not built here, and "
        f"cannot be built from what was saved. Nothing has been changed. Call {call} before "
        "restore_checkpoint()."
    )
