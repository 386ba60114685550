"""An optimizer that maps gradients by a function before the wrapped optimizer gets them.

gradient, variable -> gradient_mapping_function -> the wrapped optimizer

Gradients that are accumulated are mapped before they are added. The result of
`compute_gradients` is not mapped.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from millrace.errors import OptionError
from millrace.extend import are_prepared
from millrace_ipu.ipu.optimizers.ipu_optimizer import Minimizing


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class MapGradientOptimizer(Minimizing):
    """Trains as the wrapped optimizer does on `gradient_mapping_function(gradient, variable)`.

    Args:
        wrapped_optimizer: a Keras optimizer.
        gradient_mapping_function: returns the gradient to use; not called for a variable without
            a gradient, or one that Keras overwrites, such as a scale of float8.
        name: of the new optimizer.

    Raises:
        OptionError: if one of the first two is something else.
    """

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        gradient_mapping_function: Callable[[jax.Array, keras.Variable], jax.Array],
        name: str = "MapGradientOptimizer",
    ):
        if not callable(gradient_mapping_function):
            raise OptionError(
                "gradient_mapping_function is a function of a gradient and its variable. Received: "
                f"{gradient_mapping_function!r}. Set one, such as lambda gradient, variable: "
                "2 * gradient."
            )
        super().__init__(wrapped_optimizer, name)
        self._function = gradient_mapping_function

    def prepare(
        self, gradients: list[jax.Array | None], variables: Sequence[keras.Variable]
    ) -> list[Any]:
        """Maps gradients that are about to be accumulated."""
        return self._mapped(super().prepare(gradients, variables), variables)

    def gradients_to_apply(
        self, gradients: Sequence[jax.Array | None], variables: Sequence[keras.Variable] | None
    ) -> list[Any]:
        """Maps gradients that are about to be applied, unless `prepare` has mapped them."""
        if self.is_accumulated or are_prepared():
            return list(gradients)
        return self._mapped(gradients, self._variables_seen if variables is None else variables)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the wrapped optimizer."""
        super().build(variables)
        self._variables_seen = list(variables)

    def _mapped(
        self, gradients: Sequence[jax.Array | None], variables: Sequence[keras.Variable]
    ) -> list[Any]:
        return [
            gradient
            if gradient is None or variable.overwrite_with_gradient
            else self._function(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
