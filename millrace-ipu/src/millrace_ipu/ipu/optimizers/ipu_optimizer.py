"""Optimizers around another one, and the methods that all optimizers of IPU programs have.

CrossReplicaOptimizer(opt)             the mean of gradients over replicas
MapGradientOptimizer(opt, function)    function(gradient, variable), before gradients are added up

minimize(loss, variables)              -> value_and_grad, and apply_gradients
compute_gradients(loss, variables)     -> value_and_grad
apply_gradients(pairs, global_step)    -> apply_gradients(pairs)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import keras

from millrace.errors import OptionError
from millrace.extend import WrappingOptimizer, are_prepared, cross_replica_mean, largest
from millrace_ipu._compat.keras_optimizers import let_names_be_given
from millrace_ipu.pytrees import Gradient
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
        grads_and_vars: Iterable[tuple[Gradient, keras.Variable]],
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


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class CrossReplicaOptimizer(Minimizing):
    """Averages gradients over the replicas of a compiled function, and applies them.

    Variables that are equal on all replicas at the start stay equal. Models that a strategy runs
    as replicas do not need it: their gradients are reduced anyway.

    Args:
        opt: a Keras optimizer.
        name: of the new optimizer.

    Raises:
        OptionError: if `opt` is not an optimizer.
    """

    takes_means = True

    def __init__(self, opt: keras.optimizers.Optimizer, name: str = "CrossReplicaOptimizer"):
        super().__init__(opt, name)

    def gradients_to_apply(
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable] | None
    ) -> list[Gradient]:
        """Returns the mean of the replicas' gradients, which are exchanged all at once.

        Of the values with which Keras overwrites a variable it is the largest.
        """
        new: list[Any] = list(gradients)
        overwrites = [getattr(each, "overwrite_with_gradient", False) for each in variables or new]
        reduced = [k for k, gradient in enumerate(new) if gradient is not None]
        averaged = [k for k in reduced if not overwrites[k]]
        means = cross_replica_mean([new[k] for k in averaged])
        for k in reduced:
            new[k] = largest(new[k]) if overwrites[k] else means.pop(0)
        return new


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

    def prepare(self, gradients: list[Gradient], variables: Sequence[keras.Variable]) -> list[Any]:
        """Maps gradients that are about to be accumulated."""
        return self._mapped(super().prepare(gradients, variables), variables)

    def gradients_to_apply(
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable] | None
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
        self, gradients: Sequence[Gradient], variables: Sequence[keras.Variable]
    ) -> list[Any]:
        return [
            gradient
            if gradient is None or variable.overwrite_with_gradient
            else self._function(gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
