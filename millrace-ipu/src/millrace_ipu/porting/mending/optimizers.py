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
from millrace.extend import is_own_module, trained_by
from millrace_ipu.ipu.replica_launches import added_up
from millrace_ipu.porting.keras2 import OVERRIDES
from millrace_ipu.porting.mending.calls import added, around, mended_arguments

# In a schedule of learning rates: what the program of an update would forget.
_ASSIGNMENTS = {"assign", "assign_add", "assign_sub"}
Transform = Callable[[list[tuple[Any, keras.Variable]]], Iterable[tuple[Any, keras.Variable]]]


added(keras.optimizers.Optimizer, "weights")(property(lambda self: self.variables))


def _set_rate(optimizer: Any, rate: object) -> None:
    optimizer.learning_rate = rate


added(keras.optimizers.Optimizer, "lr")(property(lambda self: self.learning_rate, _set_rate))


@added(keras.optimizers.Optimizer, "get_weights")
def _get_weights(self: keras.optimizers.Optimizer) -> list[np.ndarray]:
    own = (variable for variable in self.variables if variable.name != "learning_rate")
    return [np.asarray(variable.value) for variable in own]


@around(keras.optimizers.Optimizer, "__init__")
def _make(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    _refuse_overrides(type(self))
    args, kwargs = mended_arguments(f"keras.optimizers.{type(self).__name__}", args, kwargs)
    decay = kwargs.pop("decay", None)
    transforms = kwargs.pop("gradient_transformers", None)
    if args:  # the default, if a class has passed it on beside its `lr`
        kwargs.setdefault("learning_rate", args[0])
    rate: Any = kwargs.get("learning_rate")
    if isinstance(rate, jax.Array | np.ndarray | np.generic) and rate.size == 1:
        kwargs["learning_rate"] = float(np.asarray(rate).item())  # which Keras 3 takes
    if decay:
        kwargs["learning_rate"] = keras.optimizers.schedules.InverseTimeDecay(
            float(kwargs["learning_rate"]), 1, float(decay)
        )
    _refuse_assignments(kwargs.get("learning_rate"))
    original(self, *args[1:], **kwargs)
    if transforms:
        apply = functools.partial(_apply_transformed, self.apply, tuple(transforms))
        object.__setattr__(self, "apply", apply)


@around(keras.optimizers.LossScaleOptimizer, "__init__")
def _make_scaled(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Takes `inner, dynamic, initial_scale, dynamic_growth_steps`, as in Keras 2."""
    dynamic = kwargs.pop("dynamic", True)
    if len(args) > 1 and isinstance(args[1], bool):
        dynamic, args = args[1], (args[0], *args[2:])
    if not dynamic:
        raise UnsupportedError(
            "LossScaleOptimizer(dynamic=False) is not in Keras 3, whose scale is always dynamic. "
            "For a fixed scale set optimizer.loss_scale_factor = scale, without the wrapper."
        )
    original(self, *args, **kwargs)


def _refuse_assignments(schedule: object) -> None:
    """Raises for a schedule that counts updates in a variable, which would stay as it is."""
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return
    code = getattr(type(schedule).__call__, "__code__", None)
    if code is not None and _ASSIGNMENTS & {*code.co_names}:
        raise UnsupportedError(
            f"{type(schedule).__name__}.__call__() assigns to a variable. The program of an update "
            "keeps only variables of the optimizer, so this one would not change. Use the argument "
            "of __call__, which counts the updates: tf.cast(step, tf.float32)."
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
