"""Checks of the data given to fit, evaluate and predict.

    y            (rows, steps, values)
    losses       (rows, steps)           a loss of Keras is a mean over the last axis
    weights      (rows,) or (rows, steps)

The shape of losses of the user's own is unknown, and not checked.

Unsuitable data is refused before Keras sees it: its errors say less, and an unbuilt model would be
left half built.
"""

import os
import types
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

import keras
import numpy as np

from millrace.errors import DataError, OptionError
from millrace.options import whole_number
from millrace.plan import Mode
from millrace.pytrees import Array


def check_sample_weight(
    model: keras.Model, y: object, weights: object, name: str = "sample_weight"
) -> None:
    """Refuses weights with more axes than the losses of the model have.

    Args:
        model: with the loss that `compile` was given.
        y: targets.
        weights: a weight for each row of them, or for each step of each row.
        name: of the weights, as the user passes them.

    Raises:
        DataError: with the shapes.
    """
    if not (isinstance(y, Array) and isinstance(weights, Array)):
        return
    if weights.ndim < 2 or not weights.size:
        return
    axes = _axes_of_losses(model, y)
    if axes is None or weights.ndim <= axes or set(weights.shape[axes:]) == {1}:
        return
    forms = "a weight for each row"
    if axes > 1:
        forms += f", or for each value along the first {axes} axes of y"
    raise DataError(
        f"{name} has the shape {weights.shape}, and y the shape {y.shape}, whose losses are "
        f"weighed along {axes} {'axis' if axes == 1 else 'axes'}. Pass {forms}: an array of shape "
        f"{y.shape[:axes]}."
    )


def _axes_of_losses(model: keras.Model, y: Array) -> int | None:
    """Returns the most axes that the losses can have; None if unknown."""
    try:
        loss: Any = keras.losses.get(model.loss)
    except (TypeError, ValueError):  # several losses, or none that Keras knows
        return None
    function = getattr(loss, "fn", loss)
    named: Any = function if hasattr(function, "__name__") else type(function)
    if loss is None or not named.__module__.startswith("keras."):
        return None
    has_class_numbers = "sparse" in named.__name__.lower()
    axes = max(y.ndim - (not has_class_numbers), 1)
    if not model.built:
        return axes if y.ndim > 1 else None
    shape: object = getattr(model, "output_shape", None)
    return max(axes, len(shape) - 1) if _is_shape(shape) else None


def _is_shape(shape: object) -> TypeGuard[tuple[int | None, ...]]:
    return isinstance(shape, tuple) and all(size is None or isinstance(size, int) for size in shape)


_LOOPS = {Mode.TRAIN: "fit", Mode.TEST: "evaluate", Mode.PREDICT: "predict"}
_DATA = ("x", "y", "sample_weight")
_KINDS = {"S": "text", "U": "text", "O": "Python objects", "m": "time spans", "M": "dates"}
# Modules whose types hold no batches, apart from generators, lists, tuples and dicts.
_PLAIN = ("builtins", "itertools", "pathlib")
_ADVICE = {
    "text": (
        "Replace each text by a number first: names, numbers = np.unique({}, return_inverse=True)"
    ),
    "Python objects": "Bring all rows to one length and one number type: np.asarray({}, 'float32')",
    "time spans": "Turn them into numbers first: {} / np.timedelta64(1, 's')",
    "dates": "Turn them into numbers first: {}.astype('datetime64[s]').astype('float32')",
}


def check_steps_per_execution(model: keras.Model) -> None:
    """Refuses a value that is no number of steps.

    Raises:
        OptionError: with a number to set instead.
    """
    try:
        whole_number("steps_per_execution", model.steps_per_execution, 1)
    except OptionError as error:
        raise OptionError(
            f"{error} It is the argument of {model.name!r}.compile(): the steps that run in one "
            "call of compiled code, such as 100."
        ) from None


def check_data_arguments(model: keras.Model, mode: Mode, arguments: Mapping[str, object]) -> None:
    """Refuses data that no model can be trained with.

    Args:
        model: whose loop is called.
        mode: of the loop.
        arguments: of Keras's fit, evaluate or predict, with their defaults.

    Raises:
        DataError: for no data, arrays without rows, of text or of objects, missing targets,
            sample weights of a wrong shape, and objects that hold no batches.
    """
    loop, x, y = f"{_LOOPS[mode]}()", arguments.get("x"), arguments.get("y")
    _check_not_empty(loop, [arguments.get(name) for name in _DATA])
    for name in _DATA:
        _check_data(name, arguments.get(name))
    if mode is not Mode.PREDICT and _are_arrays(x) and y is None:
        check_targets(model, loop, f"Pass y{_other_forms(loop, x)}")
    check_sample_weight(model, y, arguments.get("sample_weight"))
    validation = arguments.get("validation_data")
    if isinstance(validation, tuple | list) and mode is Mode.TRAIN:
        _check_validation(model, validation)
    else:
        _check_data("validation_data", validation)
        if _are_arrays(validation):
            _check_validation(model, (validation,))


def check_batch(
    model: keras.Model,
    method: str,
    mode: Mode,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> None:
    """Refuses a batch of `train_on_batch` or the like without x, or without targets.

    Raises:
        DataError: saying what to pass.
    """
    batch = {**dict(zip(_DATA, args, strict=False)), **kwargs}
    x = batch.get("x")
    if x is None or (isinstance(x, dict | list | tuple) and not x):
        _check_not_empty(f"{method}()", [batch.get(name) for name in _DATA])
    elif mode is not Mode.PREDICT and batch.get("y") is None and _are_arrays(x):
        check_targets(model, f"{method}()", "Pass y")


def _check_not_empty(taker: str, data: Sequence[object]) -> None:
    if all(leaf is None for leaf in keras.tree.flatten(data)):
        raise DataError(
            f"{taker} was given no data: x={data[0]!r}. Pass x, an array or a data set of batches."
        )


def _check_validation(model: keras.Model, validation: Sequence[object]) -> None:
    if not 1 <= len(validation) <= len(_DATA):
        raise DataError(
            "validation_data must be (x, y) or (x, y, sample_weight), or a data set of batches. "
            f"Received: a {type(validation).__name__} of {len(validation)}."
        )
    rows: dict[str, int] = {}
    for name, data in zip(_DATA, validation, strict=False):
        _check_data(f"{name} of validation_data", data)
        if isinstance(data, Array):
            rows[name] = len(data)
    if len(set(rows.values())) > 1:
        raise DataError(
            "The arrays of validation_data have different numbers of rows: "
            f"{', '.join(f'{count} in {name}' for name, count in rows.items())}. Pass as many "
            "targets as there are rows in x."
        )
    _, y, weights = (*validation, None, None)[: len(_DATA)]
    if _are_arrays(validation[0]) and y is None:
        check_targets(model, "validation_data of fit()", "Set validation_data=(x, y)")
    check_sample_weight(model, y, weights, "sample_weight of validation_data")


def check_targets(model: keras.Model, taker: str, advice: str) -> None:
    """Refuses data without targets where the loss needs them.

    Raises:
        DataError: if the loss given to `compile` needs them.
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


def _text(loss: object) -> str:
    return repr(loss) if isinstance(loss, str) else getattr(loss, "name", type(loss).__name__)


def _are_arrays(data: object) -> bool:
    leaves = keras.tree.flatten(data) if isinstance(data, dict | list | tuple) else [data]
    return bool(leaves) and all(isinstance(leaf, Array) for leaf in leaves)


def _other_forms(loop: str, x: object) -> str:
    """Returns other arguments to pass if x holds the targets, too."""
    if isinstance(x, tuple) and len(x) == 2:
        return f", which {loop[:-1]}*x) does if x is (data, targets)"
    if isinstance(x, list) and all(isinstance(batch, tuple) for batch in x):
        return ", or batches from a generator: (batch for batch in x)"
    return ""


def _check_data(name: str, data: object) -> None:
    if isinstance(data, list) and data and _is_number(_first(data)):
        raise DataError(
            f"{name} is a list of Python numbers, and a list stands for several inputs. Pass one "
            f"array: np.asarray({name}, 'float32')."
        )
    leaves = keras.tree.flatten(data) if isinstance(data, dict | list | tuple) else [data]
    for leaf in leaves:
        _check_holds_batches(name, leaf)
    for leaf in cast(list[Array], leaves) if _are_arrays(data) else ():
        _check_array(name, leaf)


def _check_holds_batches(name: str, data: object) -> None:
    """Refuses Python objects without data, or with batches that Keras does not draw.

    Raises:
        DataError: naming the type, and what to pass instead.
    """
    is_plain = type(data).__module__ in _PLAIN or isinstance(data, np.generic)
    is_data = data is None or isinstance(data, dict | list | tuple | types.GeneratorType)
    if is_data or not is_plain:
        return
    kind, rows = type(data).__name__, "Pass an array with one row for each sample"
    if isinstance(data, bool | int | float | np.number | np.bool_):
        what = f"{data!r}, a single value"
        advice = rows
    elif isinstance(data, str | bytes | os.PathLike):
        what = f"the text {data!r}" if isinstance(data, str | bytes) else f"the path {str(data)!r}"
        advice = "Load the file first, with np.load() or keras.utils.image_dataset_from_directory()"
    elif isinstance(data, type):
        what = f"the class {data.__name__}"
        advice = f"Pass an object of it: {data.__name__}(...)"
    elif callable(data):
        what = f"the {kind} {getattr(data, '__name__', '')!r}"
        advice = f"Call it, and pass the data or the generator that it returns: {name}()"
    elif isinstance(data, range | set | frozenset):
        what = f"a {kind}"
        advice = f"Pass an array: np.asarray(list({name}), 'float32')"
    else:
        what = f"an object of type {kind}"
        holds_batches = name in ("x", "validation_data")
        advice = f"Pass a generator: (batch for batch in {name})" if holds_batches else rows
    raise DataError(f"{name} is {what}, which a model cannot take batches from. {advice}.")


def _check_array(name: str, leaf: Array) -> None:
    kind = None
    if isinstance(leaf, np.ndarray):
        kind = _KINDS.get(leaf.dtype.kind)
        if kind == "Python objects" and leaf.size and isinstance(leaf.flat[0], str | bytes):
            kind = "text"
    if kind is not None:
        raise DataError(
            f"{name} is an array of {kind} (dtype {leaf.dtype}, shape {leaf.shape}), and a "
            f"model computes with numbers. {_ADVICE[kind].format(name.partition(' ')[0])}."
        )
    if not leaf.ndim:
        raise DataError(
            f"{name} is one number: its shape is (). Pass an array with one row for each sample."
        )
    if not len(leaf):
        raise DataError(
            f"{name} has no rows: its shape is {leaf.shape}. Check what selects or loads it."
        )


def _first(data: object) -> object:
    while isinstance(data, list) and data:
        data = data[0]
    return data


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)
