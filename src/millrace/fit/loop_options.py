"""Checks of the numbers and callbacks given to fit, evaluate and predict.

Values that Keras takes are left alone, `epochs=0` and `steps_per_epoch=0` too. Values that would
fail later, in a `range` or in the validation of the first epoch, are refused here.
"""

import inspect
import operator
from collections.abc import Mapping
from typing import SupportsFloat, SupportsIndex, cast

import keras
import numpy as np

from millrace.errors import OptionError
from millrace.options import whole_number

_COUNTS = ("steps_per_epoch", "steps")  # None leaves them to the data, and so does 0
_OF_VALIDATION = ("validation_steps", "validation_batch_size")
_NUMBERS = (int, float, np.number)
_CALLBACK_METHODS = ("set_model", "on_epoch_end", "on_train_batch_end")


def check_options(arguments: Mapping[str, object]) -> None:
    """Refuses numbers and callbacks that no loop can use.

    Args:
        arguments: of Keras's fit, evaluate or predict, with their defaults.

    Raises:
        OptionError: with the argument, its value and what to set.
    """
    if arguments.get("batch_size") is not None:
        whole_number("batch_size", arguments["batch_size"], 1)
    for name in ("epochs", "initial_epoch"):
        if name in arguments:
            _check_whole(name, arguments[name])
    for name in _COUNTS:
        if arguments.get(name) is not None:
            number = _check_whole(name, arguments[name], "None or ")
            if number < 0:
                raise OptionError(
                    f"{name} must be at least 1. Received: {arguments[name]}. Set {name}=None to "
                    "take all batches of the data."
                )
    if arguments.get("validation_data") is not None:
        _check_validation(arguments)
    elif arguments.get("validation_split"):
        _check_split(arguments["validation_split"])
    _check_class_weight(arguments.get("class_weight"))
    if arguments.get("callbacks"):
        _check_callbacks(arguments["callbacks"])


def _check_whole(name: str, value: object, otherwise: str = "") -> int:
    try:
        return operator.index(cast(SupportsIndex, value))
    except TypeError:
        raise OptionError(
            f"{name} must be {otherwise}a whole number. Received: {value!r} of type "
            f"{type(value).__name__}.{_whole_advice(name, value)}"
        ) from None


def _whole_advice(name: str, value: object) -> str:
    try:
        number = float(cast(SupportsFloat, value))
    except (TypeError, ValueError):
        return ""
    return f" Set {name}={int(number)}." if number.is_integer() else ""


def _check_validation(arguments: Mapping[str, object]) -> None:
    for name in _OF_VALIDATION:
        if arguments.get(name) is not None:
            _check_whole(name, arguments[name], "None or ")
    frequency = arguments.get("validation_freq", 1)
    if not isinstance(frequency, int | list) or frequency == 0:
        raise OptionError(
            "validation_freq must be a whole number of at least 1, or a list of epochs. Received: "
            f"{frequency!r} of type {type(frequency).__name__}. Set validation_freq=2 to validate "
            "after every second epoch, or leave validation_data out."
        )


def _check_split(split: object) -> None:
    if isinstance(split, _NUMBERS) and 0 < split < 1:
        return
    raise OptionError(
        "validation_split must be the share of the rows to validate with, above 0 and below 1. "
        f"Received: {split!r}. Set validation_split=0.2."
    )


def _check_class_weight(weights: object) -> None:
    if weights is None or isinstance(weights, Mapping):
        return
    raise OptionError(
        "class_weight must be a dict with the weight of each class, such as {0: 1.0, 1: 5.0}. "
        f"Received: {weights!r} of type {type(weights).__name__}. Set "
        "class_weight=dict(enumerate(weights)) if you have a list with a weight for each class."
    )


def _check_callbacks(callbacks: object) -> None:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, keras.callbacks.Callback):
            continue
        if isinstance(callback, type):
            name = callback.__name__
            raise OptionError(
                f"callbacks holds the class {name}, and not an object of it. Set "
                f"callbacks=[{name}(...)]."
            )
        if all(hasattr(callback, method) for method in _CALLBACK_METHODS):
            continue
        advice = "Set callbacks=[keras.callbacks.EarlyStopping(patience=3)], for example."
        if inspect.isroutine(callback):
            advice = "Set callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=function)]."
        raise OptionError(
            "callbacks must be keras.callbacks.Callback objects. Received: "
            f"{callback!r} of type {type(callback).__name__}. {advice}"
        )
