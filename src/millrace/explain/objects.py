"""The attributes of an object that its behaviour depends on."""

import dataclasses
import enum
from types import FunctionType
from typing import Any

import keras

from millrace._compat.jax_tracing import JIT_NOTES
from millrace._compat.keras_layers import OBJECT_BOOKKEEPING, bookkeeping, variables_without_decay
from millrace.explain.library import is_library_class

# Names of Keras's own that say which object it is, or that are made while it runs.
_RUNNING = frozenset({"history", "metrics_names"})
# Of functions, and of objects around functions; they say nothing of what these do.
ASIDE = frozenset({"__doc__", "__annotations__", "__module__", *JIT_NOTES})
_KERAS = (
    keras.optimizers.Optimizer,
    keras.Loss,
    keras.Metric,
    keras.Initializer,
    keras.Regularizer,
    keras.constraints.Constraint,
    keras.optimizers.schedules.LearningRateSchedule,
)

_OF_MODELS = (keras.Layer, *_KERAS, enum.Enum)


def is_small_keras_object(value: Any) -> bool:
    """Whether an object is known by its configuration: an initializer, which draws a seed."""
    return isinstance(value, keras.Initializer) and is_library_class(type(value))


def is_tool(value: Any) -> bool:
    """Whether an object is one of millrace's that has to do with running, such as a strategy."""
    kind = type(value)
    is_ours = str(kind.__module__).startswith("millrace.")
    return is_ours and not dataclasses.is_dataclass(kind) and not isinstance(value, _OF_MODELS)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Returns the attributes by which an object acts; None if it does not show any.

    Of Keras's objects these are what they were made with, and what was set since. Variables and
    what is derived from them is left out: their values are state, not part of a program.
    """
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    own = getattr(value, "__dict__", None)
    if own is None and not any("__slots__" in kind.__dict__ for kind in type(value).__mro__[:-1]):
        return None
    found.update(own or {})
    if isinstance(value, keras.Layer):
        return _of_layer(value, found)
    if isinstance(value, _KERAS):
        return _of_keras(value, found)
    return {name: attribute for name, attribute in found.items() if name not in ASIDE}


def _of_layer(layer: Any, found: dict[str, Any]) -> dict[str, Any]:
    hidden = bookkeeping(isinstance(layer, keras.Model))
    is_keras = type(layer).__module__.startswith("keras.")
    return {
        _spoken(name, found): value
        for name, value in found.items()
        if name not in hidden
        and name not in _RUNNING
        and not (is_keras and name.endswith("_initializer"))  # variables exist already
        and not (is_keras and name == "kernel_shape")  # follows from units; since Keras 3.16
        and not (is_keras and _is_state(value))
        and not _is_method_of_ours(value)
    }


def _of_keras(value: Any, found: dict[str, Any]) -> dict[str, Any]:
    shown = {
        _spoken(name, found): attribute
        for name, attribute in found.items()
        if name not in OBJECT_BOOKKEEPING
        and not _is_state(attribute)
        and not (isinstance(attribute, list) and not attribute)  # of variables, once it is built
    }
    without_decay = variables_without_decay(value)
    return shown | ({"exclude_from_weight_decay": without_decay} if without_decay else {})


def _spoken(name: str, names: dict[str, Any]) -> str:
    """Returns `num_heads` for `_num_heads`, as the user gave it."""
    plain = name.lstrip("_")
    return plain if plain and plain not in names else name


def _is_state(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_state(item) for item in value)
    return isinstance(value, keras.Variable)


def _is_method_of_ours(value: Any) -> bool:
    """Whether an attribute of a model is a method that attachment has added."""
    return isinstance(value, FunctionType) and str(value.__globals__.get("__name__")).startswith(
        "millrace."
    )
