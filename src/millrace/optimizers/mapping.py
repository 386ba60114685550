"""An optimizer whose gradients go through a function first.

gradient, variable -> function -> the wrapped optimizer

Where gradients are accumulated, each goes through it before it is added.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from millrace.errors import OptionError
from millrace.optimizers.wrapping import WrappingOptimizer
from millrace.steps.update import are_prepared


@keras.saving.register_keras_serializable(package="millrace")
class MappingOptimizer(WrappingOptimizer):
    """Trains as the wrapped optimizer does on `function(gradient, variable)`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        function: returns the gradient that is used; not called where there is none.
        name: of the optimizer.

    Raises:
        OptionError: if one of these is something else.
    """

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        function: Callable[[Any, Any], Any],
        name: str = "MappingOptimizer",
    ):
        if not callable(function):
            raise OptionError(
                "Gradients are mapped by a function of a gradient and its variable. Received: "
                f"{function!r}. Set one, such as lambda gradient, variable: gradient."
            )
        super().__init__(wrapped_optimizer, name)
        self._function = function

    def prepare(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Maps gradients that are about to be accumulated."""
        return self._mapped(super().prepare(gradients, variables), variables)

    def see(self, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
        """Maps gradients that are about to be applied, unless that has been done."""
        if self.is_accumulated or are_prepared():
            return list(gradients)
        return self._mapped(gradients, self._variables_seen if variables is None else variables)

    def build(self, variables: Any) -> None:
        """Builds the wrapped optimizer."""
        super().build(variables)
        self._variables_seen = list(variables)

    def _mapped(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return [
            None if gradient is None else self._function(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
