"""Private Keras: optimizers that are made while a function is traced. Checked on 3.13.0 and 3.15.1.

`Optimizer.__init__` makes variables with values at once, which a stateless scope forbids.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.core import Tracer
from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

from millrace._compat.keras_steps import stored_value
from millrace._compat.patch_table import OPTIMIZER_INIT
from millrace._compat.patches import replace
from millrace.errors import LoopError

_SCOPE = "stateless_scope"


def let_optimizers_be_made() -> None:
    """Lets optimizers be made in functions that are traced."""

    def wrapper(original: Callable[..., None]) -> Callable[..., None]:
        def make(self: keras.optimizers.Optimizer, *args: object, **kwargs: object) -> None:
            scope = get_global_attribute(_SCOPE)
            if scope is None:
                return original(self, *args, **kwargs)
            _check_rate(self, *args, **kwargs)
            set_global_attribute(_SCOPE, None)
            try:
                with jax.ensure_compile_time_eval():
                    original(self, *args, **kwargs)
            finally:
                set_global_attribute(_SCOPE, scope)

        return make

    replace(OPTIMIZER_INIT, wrapper)


def wrapped_chain(
    optimizer: keras.optimizers.Optimizer | None,
) -> Iterator[keras.optimizers.Optimizer]:
    """Yields an optimizer and those that it wraps, from the outermost to the innermost."""
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Returns the variables that an optimizer trains, in the order of its gradients."""
    private: Any = optimizer
    return private._trainable_variables


def unshare_averages(model: keras.Model) -> None:
    """Gives averages of weights arrays of their own.

    At the end of `fit` Keras puts the averages into the weights, as the same arrays, and a program
    cannot take over one array for two variables: in plain Keras the next `fit` fails.
    """
    chain = list(wrapped_chain(model.optimizer))
    inner = [each for outer in chain for each in getattr(outer, "optimizers", ())]
    if any(getattr(each, "use_ema", False) for each in (*chain, *inner)):
        taken = {id(stored_value(variable)) for variable in model.trainable_variables}
        for variable in model.optimizer.variables:
            if id(stored_value(variable)) in taken:
                variable.assign(jnp.copy(variable.value))


def _check_rate(
    optimizer: keras.optimizers.Optimizer, learning_rate: object = None, *_: object, **__: object
) -> None:
    if isinstance(learning_rate, Tracer):
        raise LoopError(
            f"{type(optimizer).__name__} was made with a learning rate that is computed on the "
            f"device, {learning_rate}. Make it with a number, and assign optimizer.learning_rate "
            "before a run with another rate; or multiply the loss by the value."
        )
