"""An optimizer that adds up gradients, and applies them once in a number of turns of a loop.

    turn          0    1    2    3    4    5    6    7
    accumulator   g0  +g1  +g2  +g3   g4  +g5  +g6  +g7
    update                       *                   *

Models that a strategy runs accumulate by `set_gradient_accumulation_options`, which computes no
update that is not applied. This one is for loops of the user's own.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import keras
from keras import ops

from millrace.errors import OptionError, PlanError
from millrace.loops.replication import holds_anywhere
from millrace.loops.scope import loop_around
from millrace.optimizers.as_accumulated import chain_of, refusing_other_dtypes
from millrace.optimizers.wrapping import WrappingOptimizer
from millrace.options import whole_number
from millrace.steps.accumulate import accumulator_dtype


@keras.saving.register_keras_serializable(package="millrace")
class AccumulatingOptimizer(WrappingOptimizer):
    """Accumulates the gradients of `steps` turns of `millrace.repeat`, and applies their sum.

    Variables change, and `iterations` counts, once in so many turns; the loop must make a multiple
    of them. This is the outermost of wrapped optimizers.

    Args:
        wrapped_optimizer: a Keras optimizer.
        steps: turns for each update.
        reduction: `"sum"`, or `"mean"` over the turns.
        dtype: of the accumulators: None for that of each variable, a dtype for all, or a function
            that returns one for a variable.
        keeps_dtype: whether the wrapped optimizer is given what was accumulated in that dtype. It
            must then cast it, in an `apply_gradients` of its own. False gives it the variable's.
        name: of the optimizer.

    Raises:
        OptionError: for other values.
        PlanError: if an accumulating optimizer is wrapped.
    """

    is_outermost = True

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        steps: int,
        *,
        reduction: str = "sum",
        dtype: Any = None,
        keeps_dtype: bool = False,
        name: str = "AccumulatingOptimizer",
    ):
        steps = whole_number("steps", steps, 1)
        if reduction not in ("sum", "mean"):
            raise OptionError(f"reduction is 'sum' or 'mean'. Received: {reduction!r}.")
        super().__init__(wrapped_optimizer, name)
        for inner in chain_of(wrapped_optimizer):
            if isinstance(inner, WrappingOptimizer):
                inner.is_accumulated = True
        self.steps = steps
        self._reduction, self._dtype, self._keeps_dtype = reduction, dtype, keeps_dtype

    def build(self, variables: Any) -> None:
        """Makes accumulators, and builds the wrapped optimizer."""
        super().build(variables)
        self._applied_to = list(variables)
        self._turn = self.add_variable((), "zeros", "int32", name="turn")
        self._accumulators = [
            self.add_variable(
                variable.shape,
                "zeros",
                str(accumulator_dtype(self._dtype, variable)),
                name=f"{variable.path.replace('/', '_')}_accumulator",
            )
            for variable in variables
        ]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Adds gradients up, and lets the wrapped optimizer apply them at the end of an update.

        Raises:
            PlanError: outside of a loop of `repeat`.
        """
        self._check_loop()
        grads, variables = self._built_for(grads, trainable_variables)
        variables = self._applied_to if variables is None else variables
        places = {id(variable): place for place, variable in enumerate(self._applied_to)}
        accumulators = [self._accumulators[places[id(variable)]] for variable in variables]
        pairs = [
            (accumulator, gradient, variable)
            for accumulator, gradient, variable in zip(
                accumulators, self.prepare(grads, variables), variables, strict=True
            )
            if gradient is not None
        ]
        for accumulator, gradient, _ in pairs:
            accumulator.assign_add(ops.cast(gradient, accumulator.dtype))

        def update() -> None:
            self._update([accumulator for accumulator, _, _ in pairs], [v for *_, v in pairs])

        if self.steps == 1:
            update()
            return
        turn = self._turn + 1
        is_last = holds_anywhere(ops.equal(turn, self.steps))
        self._turn.assign(ops.where(is_last, 0, turn))
        ops.cond(is_last, update, lambda: None)

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        """Accumulates `(gradient, variable)` pairs, and returns the number of updates."""
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, variables)
        return self.iterations

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Is not for models that a strategy runs.

        Raises:
            PlanError: always.
        """
        raise _outside(self.name)

    def _update(self, accumulators: Sequence[Any], variables: Sequence[Any]) -> None:
        gradients = [accumulator.value for accumulator in accumulators]
        if self._reduction == "mean":
            gradients = [gradient / self.steps for gradient in gradients]
        if self._keeps_dtype:
            with refusing_other_dtypes(self.wrapped_optimizer):
                pairs = zip(gradients, variables, strict=True)
                self.wrapped_optimizer.apply_gradients(list(pairs))
        else:
            cast = [ops.cast(g, v.dtype) for g, v in zip(gradients, variables, strict=True)]
            self.wrapped_optimizer.apply(cast, variables)
        for accumulator in accumulators:
            accumulator.assign(jnp.zeros(accumulator.shape, accumulator.dtype))

    def _check_loop(self) -> None:
        loop = loop_around()
        if loop is None or not loop.is_counted:
            raise _outside(self.name)
        loop.needs_multiple_of(self.steps)


def _outside(name: str) -> PlanError:
    return PlanError(
        f"{name} accumulates over the turns of a loop, and was called outside of a loop of "
        "repeat(). Apply it in the body of repeat(); a model that is fitted accumulates by "
        "model.set_gradient_accumulation_options()."
    )
