"""A model and its options, as a loop record shows them."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from millrace.base.options import TABLE, Options
from millrace.run.fit.setup import Setup

_ARGUMENTS = ("batch_size", "epochs", "validation_batch_size", "steps_per_epoch", "shuffle")


def options_in_force(setup: Setup, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Returns the options of a loop by the names that users write.

    Args:
        setup: of the model.
        arguments: of the call.
    """
    texts: dict[str, str] = {}
    if setup.model.compiled:
        texts["steps_per_execution"] = str(setup.model.steps_per_execution)
        if (optimizer := getattr(setup.model, "optimizer", None)) is not None:
            texts["optimizer"] = type(optimizer).__name__
    texts |= {
        name: str(value)
        for name in _ARGUMENTS
        if isinstance(value := arguments.get(name), bool | int | str)
    }
    return texts | _of_table(setup.options, setup.stages.assignment() is not None)


def _of_table(options: Options, is_pipelined: bool) -> dict[str, str]:
    texts: dict[str, str] = {}
    for entry in TABLE:
        record = getattr(options, entry.record) if entry.record else options
        value = getattr(record, entry.field)
        # Some have the same name for a model in one piece and for a pipeline.
        if value is not None and (is_pipelined or entry.record != "pipelining"):
            texts[entry.option.name] = _text(value)
    return texts


def _text(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
