"""Optimizers as in Keras 2: `SGD(lr=0.1, decay=1e-4)`, `optimizer.lr`, `optimizer.get_weights()`.

learning_rate=tf.constant(0.1)   the number
decay=d                    the rate is lr / (1 + d * updates), as it was
gradient_transformers=[f]  f(pairs of gradients and variables) before they are applied
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import keras
import numpy as np

from millrace.errors import UnsupportedError
from millrace.extend import add, added_up, is_own_module, trained_by
from millrace_ipu._compat.patch_table import KERAS2_CALLS
from millrace_ipu.porting.mending.calls import mended_arguments, replace_method, signed
from millrace_ipu.porting.object_names import ASSIGNMENTS, COUNTED, OVERRIDES

Transform = Callable[[list[tuple[Any, keras.Variable]]], Iterable[tuple[Any, keras.Variable]]]


def mend_optimizers() -> None:
    """Lets optimizers be made, read and set as in Keras 2."""
    kind = keras.optimizers.Optimizer
    replace_method(kind, "__init__", _initializer)
    replace_method(keras.optimizers.LossScaleOptimizer, "__init__", _scale_initializer)
    rate = property(lambda self: self.learning_rate, _set_rate)
    add(KERAS2_CALLS, kind, "lr", rate)
    add(KERAS2_CALLS, kind, "weights", property(lambda self: self.variables))
    add(KERAS2_CALLS, kind, "get_weights", _values)


def _as_number(rate: Any) -> Any:
    """Returns a rate that is one element of an array as a Python number, which Keras 3 takes."""
    is_array = isinstance(rate, jax.Array | np.ndarray | np.generic) and rate.size == 1
    return float(np.asarray(rate).item()) if is_array else rate


def _set_rate(optimizer: Any, rate: object) -> None:
    optimizer.learning_rate = rate


def _values(self: keras.optimizers.Optimizer) -> list[np.ndarray]:
    own = (variable for variable in self.variables if variable.name != "learning_rate")
    return [np.asarray(variable.value) for variable in own]


def _initializer(original: Callable[..., None]) -> Callable[..., None]:
    @signed(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        _refuse_overrides(type(self))
        args, kwargs = mended_arguments(f"keras.optimizers.{type(self).__name__}", args, kwargs)
        if args and "learning_rate" in kwargs:
            args = args[1:]  # the default, which a class has passed on beside its `lr`
        if args:
            args = (_as_number(args[0]), *args[1:])
        elif "learning_rate" in kwargs:
            kwargs["learning_rate"] = _as_number(kwargs["learning_rate"])
        decay = kwargs.pop("decay", None)
        transforms = kwargs.pop("gradient_transformers", None)
        if decay:
            rate = args[0] if args else kwargs["learning_rate"]
            schedule = keras.optimizers.schedules.InverseTimeDecay(float(rate), 1, float(decay))
            args, kwargs["learning_rate"] = args[1:], schedule
        _refuse_assignments(kwargs.get("learning_rate", args[0] if args else None))
        original(self, *args, **kwargs)
        if transforms:
            apply = functools.partial(_apply_transformed, self.apply, tuple(transforms))
            object.__setattr__(self, "apply", apply)

    return make


def _scale_initializer(original: Callable[..., None]) -> Callable[..., None]:
    """Takes `inner, dynamic, initial_scale, dynamic_growth_steps`, as in Keras 2."""

    @signed(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        dynamic = kwargs.pop("dynamic", True)
        if len(args) > 1 and isinstance(args[1], bool):
            dynamic, args = args[1], (args[0], *args[2:])
        if not dynamic:
            raise UnsupportedError(
                "LossScaleOptimizer(dynamic=False) is not in Keras 3, whose scale is always "
                "dynamic. For a fixed scale set optimizer.loss_scale_factor = scale, without the "
                "wrapper."
            )
        original(self, *args, **kwargs)

    return make


def _refuse_assignments(schedule: object) -> None:
    """Raises for a schedule that counts updates in a variable, which would stay as it is."""
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return
    code = getattr(type(schedule).__call__, "__code__", None)
    if code is not None and {*ASSIGNMENTS} & {*code.co_names}:
        raise UnsupportedError(
            f"{type(schedule).__name__}.__call__() assigns to a variable. The program of an update "
            f"keeps only variables of the optimizer, so this one would not change. Use {COUNTED}."
        )
    for inner in vars(schedule).values():
        _refuse_assignments(inner)


def _refuse_overrides(kind: type) -> None:
    """Raises for a method that the program has written, and that Keras 3 would never call."""
    for each in kind.__mro__:
        package = each.__module__.partition(".")[0]
        if package in ("keras", "builtins") or is_own_module(package):
            continue
        for name in OVERRIDES.keys() & vars(each).keys():
            raise UnsupportedError(
                f"{each.__name__}.{name}() would have no effect: optimizers of Keras 3 do not call "
                f"it. In its place: {OVERRIDES[name]}."
            )


def _apply_transformed(
    apply: Callable[..., object],
    transforms: Sequence[Transform],
    grads: Sequence[Any],
    trainable_variables: Sequence[keras.Variable] | None = None,
) -> object:
    optimizer: Any = apply.__self__  # type: ignore[attr-defined]
    variables = trainable_variables or trained_by(optimizer)
    with added_up(optimizer, grads) as sums:
        pairs = list(zip(sums, variables, strict=True))
        for transform in transforms:
            pairs = list(transform(pairs))
        return apply([gradient for gradient, _ in pairs], trainable_variables)
