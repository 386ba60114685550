"""The attributes of an object on which its behaviour depends."""

import dataclasses
import enum
from collections.abc import Collection, Mapping
from types import FunctionType
from typing import Any

import keras

from millrace._compat.jax_tracing import JIT_NOTES
from millrace._compat.keras_layers import OBJECT_BOOKKEEPING, bookkeeping, variables_without_decay
from millrace.base.own_code import is_own_module

# Attributes of functions, and of objects around functions, that do not change what these compute.
NO_EFFECT = frozenset({"__doc__", "__annotations__", "__module__", *JIT_NOTES})
_KERAS = (
    keras.optimizers.Optimizer,
    keras.Loss,
    keras.Metric,
    keras.Initializer,
    keras.Regularizer,
    keras.constraints.Constraint,
    keras.optimizers.schedules.LearningRateSchedule,
)


def attributes_of(value: object) -> dict[str, Any] | None:
    """Returns the attributes on which an object's behaviour depends; None if it shows none.

    For Keras's objects these are their arguments, and attributes that were set later. Variables
    and attributes derived from them are left out: their values are state, not part of a program.
    """
    attributes: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes[name] = getattr(value, name)
    own = getattr(value, "__dict__", None)
    if own is None and not any("__slots__" in kind.__dict__ for kind in type(value).__mro__[:-1]):
        return None
    attributes.update(own or {})
    if isinstance(value, keras.Layer):
        return _of_layer(value, attributes)
    if isinstance(value, _KERAS):
        return _of_keras(value, attributes)
    return {name: attribute for name, attribute in attributes.items() if name not in NO_EFFECT}


def _of_layer(layer: keras.Layer, attributes: Mapping[str, object]) -> dict[str, Any]:
    # The last two are made while a model runs.
    hidden = bookkeeping(isinstance(layer, keras.Model)) | {"history", "metrics_names"}
    is_keras = type(layer).__module__.startswith("keras.")
    return {
        _as_argument(name, attributes): value
        for name, value in attributes.items()
        if name not in hidden
        and not (is_keras and name.endswith("_initializer"))  # variables exist already
        and not (is_keras and name == "kernel_shape")  # follows from units; since Keras 3.16
        and not (is_keras and _is_state(value))
        and not _is_attached(value)
    }


def _of_keras(value: object, attributes: Mapping[str, object]) -> dict[str, Any]:
    shown = {
        _as_argument(name, attributes): attribute
        for name, attribute in attributes.items()
        if name not in OBJECT_BOOKKEEPING
        and not _is_state(attribute)
        and not (isinstance(attribute, list) and not attribute)  # variables, once it is built
    }
    without_decay = variables_without_decay(value)
    return shown | ({"exclude_from_weight_decay": without_decay} if without_decay else {})


def _as_argument(name: str, names: Collection[str]) -> str:
    """Returns `num_heads` for `_num_heads`, the name of the argument."""
    plain = name.lstrip("_")
    return plain if plain and plain not in names else name


def _is_state(value: object) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_state(item) for item in value)
    return isinstance(value, keras.Variable)


def _is_attached(value: object) -> bool:
    """Whether an attribute of a model is a method that a strategy has attached to it."""
    if not isinstance(value, FunctionType):
        return False
    return is_own_module(value.__globals__.get("__name__"))


def is_tool(value: object) -> bool:
    """Whether an object of millrace's runs models, as a strategy does."""
    kind = type(value)
    if not is_own_module(kind.__module__) or dataclasses.is_dataclass(kind):
        return False
    return not isinstance(value, (keras.Layer, *_KERAS, enum.Enum))
