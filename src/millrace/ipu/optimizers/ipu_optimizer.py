"""What all optimizers of IPU programs have.

minimize(loss, variables)              -> value_and_grad, and apply_gradients
compute_gradients(loss, variables)     -> value_and_grad
apply_gradients(pairs, global_step)    -> apply_gradients(pairs)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from millrace._compat.keras_optimizers import let_names_be_given
from millrace.errors import DTypeError
from millrace.loops.gradients import value_and_grad
from millrace.loops.scope import look_at
from millrace.optimizers.wrapping import WrappingOptimizer

let_names_be_given()


class Minimizing(WrappingOptimizer):
    """Also computes the gradients that it applies, of a function that returns the loss."""

    def compute_gradients(
        self, loss: Callable[[], Any], var_list: Sequence[Any] | None = None, **_: Any
    ) -> list[tuple[Any, Any]]:
        """Returns pairs of gradients and variables.

        Args:
            loss: a function without arguments.
            var_list: None for all trainable variables that it reads.

        Raises:
            DTypeError: if `loss` is a value.
        """
        if not callable(loss):
            raise DTypeError(
                f"The gradients of a value are not known any more once it is computed. Received: "
                f"loss={type(loss).__name__}. Set a function, minimize(lambda: loss_of(x, y), "
                "variables), or take gradients by tf.GradientTape or millrace.value_and_grad() "
                "and call apply_gradients(zip(gradients, variables))."
            )
        if var_list is None:
            touched = look_at(loss)
            var_list = [v for v in (*touched.fixed, *touched.changed) if v.trainable]
        _, gradients = value_and_grad(loss, var_list)
        return list(zip(gradients, var_list, strict=True))

    def minimize(
        self, loss: Callable[[], Any], var_list: Any = None, global_step: Any = None, **_: Any
    ) -> Any:
        """Computes gradients and applies them; arguments are those of `compute_gradients`."""
        if isinstance(var_list, keras.Variable):  # the place of global_step once was here
            var_list, global_step = None, var_list
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies pairs, counts `global_step` if there is one, and returns the updates so far."""
        del name
        updates = super().apply_gradients(grads_and_vars)
        if isinstance(global_step, keras.Variable):
            global_step.assign_add(1)
        return updates


@keras.saving.register_keras_serializable(package="millrace.ipu")
class IpuOptimizer(Minimizing):
    """An optimizer around another one, which does what that does.

    Args:
        opt: a Keras optimizer.
        name: of this one; None is the other's.
    """

    def __init__(self, opt: keras.optimizers.Optimizer, name: str | None = None):
        super().__init__(opt, name or "IpuOptimizer")
