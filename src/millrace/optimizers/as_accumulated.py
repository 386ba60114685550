"""Gradients in the dtype in which they were accumulated, for an optimizer that casts them itself.

accumulated as float32 -> apply_gradients of the user's optimizer -> cast to float16 -> its update

Keras casts gradients on the way, and no stock optimizer takes them as they were accumulated.
`casts_gradients=False` of `millrace.pipeline` and `keeps_dtype` of an accumulating optimizer ask
for it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from millrace.errors import DTypeError
from millrace.optimizers.wrapping import WrappingOptimizer


class AsAccumulated(WrappingOptimizer):
    """Gives the wrapped optimizer's `apply_gradients` what was accumulated, as it is.

    Args:
        wrapped_optimizer: a Keras optimizer.
        name: of this one.

    Raises:
        OptionError: if it is something else.
    """

    def __init__(self, wrapped_optimizer: keras.optimizers.Optimizer, name: str = "AsAccumulated"):
        super().__init__(wrapped_optimizer, name)

    def build(self, variables: Sequence[Any]) -> None:
        """Builds the wrapped optimizer."""
        super().build(variables)
        self._applied_to = list(variables)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Applies gradients.

        Raises:
            DTypeError: if one reaches the update that is not of its variable's dtype.
        """
        variables = self._applied_to if trainable_variables is None else trainable_variables
        with refusing_other_dtypes(self.wrapped_optimizer):
            self.wrapped_optimizer.apply_gradients(list(zip(grads, variables, strict=True)))

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Returns new values of the variables and of the wrapped optimizer's."""
        states = [*zip(self._applied_to, trainable_variables, strict=True)]
        states += zip(self.variables, optimizer_variables, strict=True)
        with keras.StatelessScope(state_mapping=states) as scope:
            self.apply(grads)
        new = [scope.get_current_value(variable) for variable, _ in states]
        return new[: len(self._applied_to)], new[len(self._applied_to) :]


def chain_of(optimizer: Any) -> Iterator[Any]:
    """Yields an optimizer and those that it wraps."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


@contextmanager
def refusing_other_dtypes(optimizer: Any) -> Iterator[None]:
    """Lets the innermost optimizer refuse gradients that are not of their variables' dtypes.

    Keras would cast them on the way, and hide that nobody has.
    """
    *_, innermost = chain_of(optimizer)
    apply: Callable[..., Any] = innermost.apply

    def checked(grads: Any, trainable_variables: Any = None) -> Any:
        for gradient, variable in zip(grads, trainable_variables or (), strict=False):
            if gradient is not None and str(gradient.dtype) != variable.dtype:
                raise DTypeError(
                    f"The gradient of {variable.path} was accumulated as {gradient.dtype}, and the "
                    f"variable is {variable.dtype}, which {type(innermost).__name__} does not "
                    "take. Cast it in apply_gradients() of an optimizer of your own, "
                    "keras.ops.cast(gradient, variable.dtype), or accumulate in the variable's "
                    "dtype: dtype=None."
                )
        return apply(grads, trainable_variables)

    vars(innermost)["apply"] = checked
    try:
        yield
    finally:
        del vars(innermost)["apply"]
