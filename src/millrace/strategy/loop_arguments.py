"""The arguments of fit, evaluate and predict that no model can be trained with.

They are refused before Keras sees them: it would say less, and leave an unbuilt model half built.
"""

from collections.abc import Mapping
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import DataError, OptionError
from millrace.options import whole_number
from millrace.plan import Mode

_LOOPS = {Mode.TRAIN: "fit", Mode.TEST: "evaluate", Mode.PREDICT: "predict"}
_DATA = ("x", "y", "sample_weight")
_KINDS = {"S": "text", "U": "text", "O": "Python objects", "m": "time spans", "M": "dates"}
_ADVICE = {
    "text": (
        "Replace each text by a number first: names, numbers = np.unique({}, return_inverse=True)"
    ),
    "Python objects": "Bring all rows to one length and one number type: np.asarray({}, 'float32')",
    "time spans": "Turn them into numbers first: {} / np.timedelta64(1, 's')",
    "dates": "Turn them into numbers first: {}.astype('datetime64[s]').astype('float32')",
}


def check_steps_per_execution(model: keras.Model) -> None:
    """Refuses what is not a number of steps.

    Raises:
        OptionError: with a number to set in place of it.
    """
    given: Any = model.steps_per_execution
    try:
        whole_number("steps_per_execution", given, 1)
    except OptionError as error:
        raise OptionError(
            f"{error} It is the argument of {model.name!r}.compile(): the steps that run in one "
            "call of compiled code, such as 100."
        ) from None


def check_arguments(model: keras.Model, mode: Mode, arguments: Mapping[str, Any]) -> None:
    """Refuses data and sizes that no model can be trained with.

    Args:
        model: whose loop is called.
        mode: of the loop.
        arguments: of Keras's fit, evaluate or predict, with their defaults.

    Raises:
        DataError: for arrays without rows, of text or of objects, and for missing targets.
        OptionError: for a batch size that is not a whole number of at least 1.
    """
    if arguments.get("batch_size") is not None:
        whole_number("batch_size", arguments["batch_size"], 1)
    for name in _DATA:
        _check_data(name, arguments.get(name))
    validation = arguments.get("validation_data")
    if isinstance(validation, tuple):
        for name, part in zip(_DATA, validation, strict=False):
            _check_data(f"{name} of validation_data", part)
    if mode is not Mode.PREDICT and _are_arrays(arguments["x"]) and arguments["y"] is None:
        check_targets(model, f"{_LOOPS[mode]}()", "Pass y")


def check_targets(model: Any, taker: str, advice: str) -> None:
    """Refuses data without targets where the loss needs them.

    Raises:
        DataError: if `compile` was given a loss that needs them.
    """
    needs = model.loss is not None and not isinstance(model.loss, dict | list | tuple)
    stock = all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in ("compute_loss", "train_step", "test_step")
    )
    if needs and stock:
        raise DataError(
            f"{taker} was given no targets, and loss={_text(model.loss)} of {model.name!r} needs "
            f"them. {advice}, or compile without a loss if layers add all losses themselves."
        )


def _text(loss: Any) -> str:
    return repr(loss) if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)


def _are_arrays(data: Any) -> bool:
    leaves = keras.tree.flatten(data) if isinstance(data, dict | list | tuple) else [data]
    return bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)


def _check_data(name: str, data: Any) -> None:
    if isinstance(data, list) and data and _is_number(_first(data)):
        raise DataError(
            f"{name} is a list of Python numbers, and a list stands for several inputs. Pass one "
            f"array: np.asarray({name}, 'float32')."
        )
    if not _are_arrays(data):
        return
    for leaf in keras.tree.flatten(data):
        kind = _KINDS.get(np.dtype(leaf.dtype).kind) if isinstance(leaf, np.ndarray) else None
        if kind == "Python objects" and leaf.size and isinstance(leaf.flat[0], str | bytes):
            kind = "text"
        if kind is not None:
            raise DataError(
                f"{name} is an array of {kind} (dtype {leaf.dtype}, shape {leaf.shape}), and a "
                f"model computes with numbers. {_ADVICE[kind].format(name.partition(' ')[0])}."
            )
        if leaf.ndim and not len(leaf):
            raise DataError(
                f"{name} has no rows: its shape is {leaf.shape}. Check what selects or loads it."
            )


def _first(data: Any) -> Any:
    while isinstance(data, list) and data:
        data = data[0]
    return data


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)
