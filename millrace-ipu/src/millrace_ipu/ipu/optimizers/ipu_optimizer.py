"""The methods that all optimizers of IPU programs have.

minimize(loss, variables)              -> value_and_grad, and apply_gradients
compute_gradients(loss, variables)     -> value_and_grad
apply_gradients(pairs, global_step)    -> apply_gradients(pairs)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import keras

from millrace._compat.keras_optimizers import let_names_be_given
from millrace.optimizers.wrapping import WrappingOptimizer
from millrace_ipu.tensorflow.computed_losses import gradients_of

let_names_be_given()


class Minimizing(WrappingOptimizer):
    """Also computes the gradients that it applies, of a function that returns the loss."""

    def compute_gradients(
        self,
        loss: Callable[[], object] | jax.Array,
        var_list: Sequence[keras.Variable] | None = None,
        **_: object,
    ) -> list[tuple[Any, Any]]:
        """Returns pairs of gradients and variables.

        Args:
            loss: a function without arguments, or a value that the function computes in which
                this is called.
            var_list: the variables; None takes all trainable variables that `loss` reads.

        Raises:
            DTypeError: if `loss` is another value.
        """
        return gradients_of(loss, var_list)

    def minimize(
        self,
        loss: Callable[[], object] | jax.Array,
        var_list: Sequence[keras.Variable] | keras.Variable | None = None,
        global_step: keras.Variable | None = None,
        **_: object,
    ) -> Any:
        """Computes gradients and applies them.

        Args:
            loss: as for `compute_gradients`.
            var_list: the variables, as for `compute_gradients`; or the global step, which
                TensorFlow 1 has as the second argument.
            global_step: a variable to add 1 to.

        Returns:
            The number of updates so far.
        """
        if isinstance(var_list, keras.Variable):
            var_list, global_step = None, var_list
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[jax.Array | None, keras.Variable]],
        global_step: keras.Variable | None = None,
        name: str | None = None,
    ) -> Any:
        """Applies `(gradient, variable)` pairs, and returns the number of updates so far.

        Args:
            grads_and_vars: the pairs.
            global_step: a variable to add 1 to.
            name: ignored.
        """
        updates = super().apply_gradients(grads_and_vars)
        if isinstance(global_step, keras.Variable):
            global_step.assign_add(1)
        return updates


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class IpuOptimizer(Minimizing):
    """An optimizer around another one, which trains as that one does.

    Args:
        opt: a Keras optimizer.
        name: of the new optimizer; None is "IpuOptimizer".
    """

    def __init__(self, opt: keras.optimizers.Optimizer, name: str | None = None):
        super().__init__(opt, name or "IpuOptimizer")
