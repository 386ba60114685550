"""Gradients in the dtype of their accumulators, for an optimizer that casts them itself.

accumulated as float32 -> apply_gradients of the user's optimizer -> cast to float16 -> its update

Keras casts gradients before an update, and no stock optimizer takes another dtype.
`gradient_accumulation_dtype` of a pipeline and `keeps_dtype` of an accumulating optimizer leave the
cast to the user's optimizer.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import keras

from millrace.errors import DTypeError
from millrace.extend import WrappingOptimizer, wrapped_chain
from millrace_ipu.pytrees import Gradient


class AsAccumulated(WrappingOptimizer):
    """Passes accumulated gradients to the wrapped optimizer's `apply_gradients`, without a cast.

    Args:
        wrapped_optimizer: a Keras optimizer.
        name: of this optimizer.

    Raises:
        OptionError: if `wrapped_optimizer` is not an optimizer.
    """

    def __init__(self, wrapped_optimizer: keras.optimizers.Optimizer, name: str = "AsAccumulated"):
        super().__init__(wrapped_optimizer, name)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Builds the wrapped optimizer."""
        super().build(variables)
        self._applied_to = list(variables)

    def apply(
        self,
        grads: Iterable[Gradient],
        trainable_variables: Iterable[keras.Variable] | None = None,
    ) -> None:
        """Applies gradients.

        Raises:
            DTypeError: if the update gets a gradient of another dtype than its variable.
        """
        variables = self._applied_to if trainable_variables is None else trainable_variables
        with refusing_other_dtypes(self.wrapped_optimizer):
            self.wrapped_optimizer.apply_gradients(list(zip(grads, variables, strict=True)))

    def stateless_apply(
        self,
        optimizer_variables: Sequence[jax.Array],
        grads: Sequence[Gradient],
        trainable_variables: Sequence[jax.Array],
    ) -> tuple[list[Any], list[Any]]:
        """Returns the new values of the trainable variables and of the optimizer's variables."""
        states = [*zip(self._applied_to, trainable_variables, strict=True)]
        states += zip(self.variables, optimizer_variables, strict=True)
        with keras.StatelessScope(state_mapping=states) as scope:
            self.apply(grads)
        new = [scope.get_current_value(variable) for variable, _ in states]
        return new[: len(self._applied_to)], new[len(self._applied_to) :]


@contextmanager
def refusing_other_dtypes(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Makes the innermost optimizer refuse gradients of other dtypes than their variables'.

    Keras would cast them silently, and hide that the user's optimizer has not.
    """
    *_, innermost = wrapped_chain(optimizer)
    apply: Callable[..., Any] = innermost.apply
    attributes = innermost.__dict__

    def checked(
        grads: Sequence[Gradient], trainable_variables: Sequence[keras.Variable] | None = None
    ) -> Any:
        for gradient, variable in zip(grads, trainable_variables or (), strict=False):
            if gradient is not None and str(gradient.dtype) != variable.dtype:
                raise DTypeError(
                    f"The gradient of {variable.path} was accumulated as {gradient.dtype}, and the "
                    f"variable is {variable.dtype}: {type(innermost).__name__} takes gradients of "
                    "the variable's dtype only. Cast it in apply_gradients() of your own "
                    "optimizer, keras.ops.cast(gradient, variable.dtype), or accumulate in the "
                    "variable's dtype: dtype=None."
                )
        return apply(grads, trainable_variables)

    attributes["apply"] = checked
    try:
        yield
    finally:
        del attributes["apply"]
