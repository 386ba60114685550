"""Gradients through a function, before the wrapped optimizer is given them.

gradient, variable -> gradient_mapping_function -> the wrapped optimizer

Where gradients are accumulated, each goes through the function before it is added. What
`compute_gradients` returns has not been through it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from millrace.errors import OptionError
from millrace.ipu.optimizers.ipu_optimizer import Minimizing
from millrace.steps.update import are_prepared


@keras.saving.register_keras_serializable(package="millrace.ipu")
class MapGradientOptimizer(Minimizing):
    """Trains as the wrapped optimizer does on `gradient_mapping_function(gradient, variable)`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        gradient_mapping_function: returns the gradient that is used; not called for a variable
            without a gradient.
        name: of the optimizer.

    Raises:
        OptionError: if one of these is something else.
    """

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ):
        if not callable(gradient_mapping_function):
            raise OptionError(
                "Gradients are mapped by a function of a gradient and its variable. Received: "
                f"{gradient_mapping_function!r}. Set one, such as lambda gradient, variable: "
                "gradient."
            )
        super().__init__(wrapped_optimizer, name)
        self._function = gradient_mapping_function

    def prepare(self, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Maps gradients that are about to be accumulated."""
        return self._mapped(super().prepare(gradients, variables), variables)

    def gradients_to_apply(
        self, gradients: Sequence[Any], variables: Sequence[Any] | None
    ) -> list[Any]:
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
