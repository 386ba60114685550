"""Base class of optimizers that wrap another one and share its variables and settings.

gradients -> the wrapper changes or records them -> the wrapped optimizer -> variables
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import keras
from jax.typing import ArrayLike

from millrace.errors import OptionError, PlanError

Gradient = jax.Array | None  # None for a variable that the loss does not depend on


class _WrappedAttribute:
    """An attribute of the wrapped optimizer."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: "WrappingOptimizer | None", owner: type | None = None) -> Any:
        return self if optimizer is None else getattr(optimizer.wrapped_optimizer, self._name)

    def __set__(self, optimizer: "WrappingOptimizer", value: object) -> None:
        # Keras's own constructor sets defaults before there is a wrapped optimizer.
        if "wrapped_optimizer" in vars(optimizer):
            setattr(optimizer.wrapped_optimizer, self._name, value)


def _as_they_are(
    optimizer: keras.optimizers.Optimizer, gradients: Iterable[Gradient]
) -> AbstractContextManager[list[Gradient]]:
    del optimizer
    return nullcontext(list(gradients))


class WrappingOptimizer(keras.optimizers.Optimizer):
    """Trains like the wrapped optimizer; subclasses override `gradients_to_apply` or `apply`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        name: of this optimizer.

    Raises:
        OptionError: if `wrapped_optimizer` is not an optimizer.
        PlanError: if `wrapped_optimizer` must be the outermost one.
    """

    is_outermost = False
    # Surrounds each application, and gives its gradients; a package on top sets another function.
    applying = staticmethod(_as_they_are)
    weight_decay: Any = _WrappedAttribute()
    clipnorm: Any = _WrappedAttribute()
    clipvalue: Any = _WrappedAttribute()
    global_clipnorm: Any = _WrappedAttribute()
    use_ema: Any = _WrappedAttribute()
    ema_momentum: Any = _WrappedAttribute()
    ema_overwrite_frequency: Any = _WrappedAttribute()
    loss_scale_factor: Any = _WrappedAttribute()
    gradient_accumulation_steps: Any = _WrappedAttribute()
    iterations: Any = _WrappedAttribute()
    learning_rate: Any = _WrappedAttribute()
    variables: Any = _WrappedAttribute()

    def __init__(self, wrapped_optimizer: keras.optimizers.Optimizer, name: str):
        if not isinstance(wrapped_optimizer, keras.optimizers.Optimizer):
            raise OptionError(
                f"{type(self).__name__} wraps a keras.optimizers.Optimizer. Received: "
                f"wrapped_optimizer={wrapped_optimizer!r}. Set an instance, such as "
                "keras.optimizers.SGD()."
            )
        if getattr(wrapped_optimizer, "is_outermost", False):
            raise PlanError(
                f"{type(self).__name__} cannot wrap {type(wrapped_optimizer).__name__}, which must "
                "be the outermost of all optimizers: it decides in which iterations the others "
                f"run. Set {type(wrapped_optimizer).__name__}({type(self).__name__}(...), ...)."
            )
        super().__init__(learning_rate=0.0, name=name)
        self.wrapped_optimizer = wrapped_optimizer
        self.is_accumulated = False  # by an outer optimizer, which calls `prepare` before

    def __getattr__(self, name: str) -> Any:
        # Attributes of some optimizers only, such as `momentum`.
        if name.startswith("__") or "wrapped_optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped_optimizer, name)

    @property
    def inner_optimizer(self) -> keras.optimizers.Optimizer:
        """The wrapped optimizer, under the name by which Keras's callbacks look for one."""
        return self.wrapped_optimizer

    def prepare(
        self, gradients: list[Gradient], variables: Sequence[keras.Variable]
    ) -> list[Gradient]:
        """Returns the gradients to accumulate, given those of one micro-batch."""
        wrapped = self.wrapped_optimizer
        is_wrapper = isinstance(wrapped, WrappingOptimizer)
        return wrapped.prepare(gradients, variables) if is_wrapper else gradients

    def gradients_to_apply(
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable] | None
    ) -> list[Gradient]:
        """Returns the gradients that the wrapped optimizer applies.

        Args:
            gradients: of the variables; None for a variable without one.
            variables: None for those that the optimizer was built with.
        """
        return list(gradients)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the wrapped optimizer, unless it has been built."""
        if not self.wrapped_optimizer.built:
            self.wrapped_optimizer.build(variables)
        self.built = True

    def apply(
        self,
        grads: Iterable[Gradient],
        trainable_variables: Iterable[keras.Variable] | None = None,
    ) -> None:
        """Applies gradients with the wrapped optimizer."""
        grads, trainable_variables = self._built_for(grads, trainable_variables)
        with self.applying(self, grads) as given:
            self.wrapped_optimizer.apply(
                self.gradients_to_apply(given, trainable_variables), trainable_variables
            )

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Gradient, keras.Variable]]) -> Any:
        """Applies `(gradient, variable)` pairs, and returns the number of updates.

        Calls `apply_gradients` of the wrapped optimizer, which the user may have overridden.
        """
        grads, variables = map(list, zip(*grads_and_vars, strict=True))
        self._built_for(grads, variables)
        with self.applying(self, grads) as given:
            grads = self.gradients_to_apply(given, variables)
            self.wrapped_optimizer.apply_gradients(list(zip(grads, variables, strict=True)))
        return self.iterations

    def stateless_apply(
        self,
        optimizer_variables: Sequence[jax.Array],
        grads: Sequence[Gradient],
        trainable_variables: Sequence[jax.Array],
    ) -> tuple[Any, Any]:
        """Returns the new values of the trainable variables and of the optimizer's variables."""
        return self.wrapped_optimizer.stateless_apply(
            optimizer_variables, self.gradients_to_apply(grads, None), trainable_variables
        )

    def update_step(
        self, gradient: jax.Array, variable: keras.Variable, learning_rate: jax.Array
    ) -> None:
        """Updates one variable with the wrapped optimizer."""
        self.wrapped_optimizer.update_step(gradient, variable, learning_rate)

    def scale_loss(self, loss: jax.Array) -> Any:
        """Scales the loss with the wrapped optimizer."""
        return self.wrapped_optimizer.scale_loss(loss)

    def set_weights(self, weights: Sequence[ArrayLike]) -> None:
        """Sets the values of the wrapped optimizer's variables."""
        self.wrapped_optimizer.set_weights(weights)

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[keras.Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Excludes variables from the wrapped optimizer's weight decay."""
        self.wrapped_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Sequence[keras.Variable]) -> None:
        """Sets the final values of the weights with the wrapped optimizer."""
        self.wrapped_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's config, and the name."""
        wrapped = keras.saving.serialize_keras_object(self.wrapped_optimizer)
        return {"name": self.name, "wrapped_optimizer": wrapped}

    @classmethod
    def from_config(
        cls,
        config: dict[str, Any],  # type: ignore[override] - Keras has no types
        custom_objects: Mapping[str, object] | None = None,
    ) -> Any:
        """Returns the wrapped optimizer alone; the program that uses a wrapper adds it again."""
        return keras.saving.deserialize_keras_object(
            config["wrapped_optimizer"], custom_objects=custom_objects
        )

    def _built_for(
        self,
        grads: Iterable[Gradient],
        trainable_variables: Iterable[keras.Variable] | None,
    ) -> tuple[list[Gradient], list[keras.Variable] | None]:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        return list(grads), trainable_variables
