"""An optimizer around another one, whose variables and whose settings are its own.

gradients -> what a wrapper does with them -> the wrapped optimizer -> variables
"""

from collections.abc import Iterable, Sequence
from typing import Any

import keras

from millrace.errors import OptionError, PlanError


class _OfWrapped:
    """An attribute that is the wrapped optimizer's."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, optimizer: Any, owner: type | None = None) -> Any:
        return self if optimizer is None else getattr(optimizer.wrapped_optimizer, self._name)

    def __set__(self, optimizer: Any, value: Any) -> None:
        # Keras's own constructor sets what nobody has chosen, before there is a wrapped one.
        if "wrapped_optimizer" in vars(optimizer):
            setattr(optimizer.wrapped_optimizer, self._name, value)


class WrappingOptimizer(keras.optimizers.Optimizer):
    """Trains as the wrapped optimizer does; subclasses change `see` or `apply`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        name: of the optimizer.

    Raises:
        OptionError: if it is something else.
        PlanError: if it must be the outermost one.
    """

    is_outermost = False
    weight_decay: Any = _OfWrapped()
    clipnorm: Any = _OfWrapped()
    clipvalue: Any = _OfWrapped()
    global_clipnorm: Any = _OfWrapped()
    use_ema: Any = _OfWrapped()
    ema_momentum: Any = _OfWrapped()
    ema_overwrite_frequency: Any = _OfWrapped()
    loss_scale_factor: Any = _OfWrapped()
    gradient_accumulation_steps: Any = _OfWrapped()
    iterations: Any = _OfWrapped()
    learning_rate: Any = _OfWrapped()
    variables: Any = _OfWrapped()

    def __init__(self, wrapped_optimizer: keras.optimizers.Optimizer, name: str):
        if not isinstance(wrapped_optimizer, keras.optimizers.Optimizer):
            raise OptionError(
                f"{type(self).__name__} wraps a keras.optimizers.Optimizer. Received: "
                f"wrapped_optimizer={wrapped_optimizer!r}. Set an instance, such as "
                "keras.optimizers.SGD()."
            )
        if getattr(wrapped_optimizer, "is_outermost", False):
            raise PlanError(
                f"{type(self).__name__} was to wrap {type(wrapped_optimizer).__name__}, which is "
                "the outermost of all optimizers: it decides in which turns those inside run. Set "
                f"{type(wrapped_optimizer).__name__}({type(self).__name__}(...), ...)."
            )
        super().__init__(learning_rate=0.0, name=name)
        self.wrapped_optimizer = wrapped_optimizer
        self.is_accumulated = False  # by an optimizer around it, which asks `prepare` before

    def __getattr__(self, name: str) -> Any:
        # What only some optimizers have, such as `momentum`.
        if name.startswith("__") or "wrapped_optimizer" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.wrapped_optimizer, name)

    @property
    def inner_optimizer(self) -> keras.optimizers.Optimizer:
        """The wrapped optimizer, under the name by which Keras's callbacks look for one."""
        return self.wrapped_optimizer

    def prepare(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns gradients as they are to be accumulated, each right after it was computed."""
        wrapped = self.wrapped_optimizer
        is_wrapper = isinstance(wrapped, WrappingOptimizer)
        return wrapped.prepare(gradients, variables) if is_wrapper else gradients

    def see(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Returns the gradients that the wrapped optimizer is given.

        Args:
            gradients: of the variables; None for those that have none.
            variables: None for those that the optimizer was built with.
        """
        return list(gradients)

    def build(self, variables: Any) -> None:
        """Builds the wrapped optimizer, unless it has trained before."""
        if not self.wrapped_optimizer.built:
            self.wrapped_optimizer.build(variables)
        self.built = True

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Applies gradients as the wrapped optimizer does."""
        grads, trainable_variables = self._built_for(grads, trainable_variables)
        self.wrapped_optimizer.apply(self.see(grads, trainable_variables), trainable_variables)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Applies `(gradient, variable)` pairs, and returns the number of updates.

        The wrapped optimizer's own `apply_gradients` is called, which may be the user's.
        """
        grads, variables = zip(*grads_and_vars, strict=True)
        grads, variables = self._built_for(grads, variables)
        self.wrapped_optimizer.apply_gradients(
            list(zip(self.see(grads, variables), variables, strict=True))
        )
        return self.iterations

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> tuple[Any, Any]:
        """Returns new values of the variables and of the wrapped optimizer's."""
        return self.wrapped_optimizer.stateless_apply(
            optimizer_variables, self.see(grads, None), trainable_variables
        )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Changes one variable as the wrapped optimizer does."""
        self.wrapped_optimizer.update_step(gradient, variable, learning_rate)

    def scale_loss(self, loss: Any) -> Any:
        """Scales the loss as the wrapped optimizer does."""
        return self.wrapped_optimizer.scale_loss(loss)

    def set_weights(self, weights: Any) -> None:
        """Sets the values of the wrapped optimizer."""
        self.wrapped_optimizer.set_weights(weights)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Excludes variables from the wrapped optimizer's weight decay."""
        self.wrapped_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list: Any) -> None:
        """Sets the final values of the weights as the wrapped optimizer does."""
        self.wrapped_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's config, and the name."""
        wrapped = keras.saving.serialize_keras_object(self.wrapped_optimizer)
        return {"name": self.name, "wrapped_optimizer": wrapped}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns the wrapped optimizer alone: what is around it belongs to a program of yours."""
        return keras.saving.deserialize_keras_object(
            config["wrapped_optimizer"], custom_objects=custom_objects
        )

    def _built_for(self, grads: Any, trainable_variables: Any) -> tuple[list[Any], Any]:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built:
                self.build(trainable_variables)
        return list(grads), trainable_variables
