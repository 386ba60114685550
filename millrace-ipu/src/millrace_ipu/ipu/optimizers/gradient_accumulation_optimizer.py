"""Optimizers that accumulate gradients over iterations of `loops.repeat`.

    iteration     0    1    2    3    4    5    6    7
    accumulator   g0  +g1  +g2  +g3   g4  +g5  +g6  +g7
    update                       *                   *

They are for custom training loops. Models that a strategy runs accumulate with
`set_gradient_accumulation_options`, which computes no update in vain.

GradientAccumulationOptimizerV2(opt, n)             -> AccumulatingOptimizer(opt, n)
GradientAccumulationOptimizer(opt, n)               -> the same, for SGD
CrossReplicaGradientAccumulationOptimizerV2, ...    -> AccumulatingOptimizer(CrossReplica(opt), n)
dtype                                               -> dtype; opt gets gradients of that dtype
offload_weight_update_variables, replicated_optimizer_state_sharding, verify_usage  without effect
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
import keras
from jax.typing import DTypeLike
from keras import ops

from millrace.errors import OptionError, PlanError
from millrace.extend import (
    WrappingOptimizer,
    accumulator_dtype,
    enclosing_loop,
    holds_anywhere,
    host_memory,
    whole_number,
    wrapped_chain,
)
from millrace_ipu.ipu.accumulator_dtype import AnyDtype, optimizer_dtype
from millrace_ipu.ipu.config import current_system
from millrace_ipu.ipu.gradient_accumulation import GradientAccumulationReductionMethod as Method
from millrace_ipu.ipu.gradient_accumulation import ReductionMethod
from millrace_ipu.ipu.gradient_accumulation import reduction_method as method_of
from millrace_ipu.ipu.optimizers.as_accumulated import refusing_other_dtypes
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer, Minimizing
from millrace_ipu.pytrees import Gradient
from millrace_ipu.tensorflow.no_operation import warn_no_effect


@keras.saving.register_keras_serializable(package="millrace")
class AccumulatingOptimizer(WrappingOptimizer):
    """Accumulates the gradients of `steps` iterations of `millrace.repeat`, and applies their sum.

    The variables and the optimizer's count `iterations` change once in `steps` iterations of the
    loop, whose number must be a multiple of `steps`. Other wrappers go inside of this one.

    Args:
        wrapped_optimizer: a Keras optimizer.
        steps: iterations of the loop for each update.
        reduction: `"sum"`, or `"mean"` over the iterations.
        dtype: of the accumulators: None for the dtype of each variable, one dtype for all, or a
            function that returns a dtype for a variable.
        keeps_dtype: whether the wrapped optimizer gets gradients in the dtype of the accumulators,
            which its own `apply_gradients` must cast. False casts them to the variable's dtype.
        name: of this optimizer.

    Raises:
        OptionError: for an invalid value.
        PlanError: if `wrapped_optimizer` accumulates, too.
    """

    is_outermost = True

    def __init__(
        self,
        wrapped_optimizer: keras.optimizers.Optimizer,
        steps: int,
        *,
        reduction: str = "sum",
        dtype: DTypeLike | Callable[[keras.Variable], DTypeLike | None] | None = None,
        keeps_dtype: bool = False,
        name: str = "AccumulatingOptimizer",
    ):
        steps = whole_number("steps", steps, 1)
        if reduction not in ("sum", "mean"):
            raise OptionError(f"reduction is 'sum' or 'mean'. Received: {reduction!r}.")
        super().__init__(wrapped_optimizer, name)
        for inner in wrapped_chain(wrapped_optimizer):
            if isinstance(inner, WrappingOptimizer):
                inner.is_accumulated = True
        self.steps = steps
        self._reduction, self._dtype, self._keeps_dtype = reduction, dtype, keeps_dtype

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates accumulators, and builds the wrapped optimizer."""
        super().build(variables)
        self._applied_to = list(variables)
        self._step = self.add_variable((), "zeros", "int32", name="turn")
        self._accumulators = [
            self.add_variable(
                variable.shape,
                "zeros",
                str(accumulator_dtype(self._dtype, variable)),
                name=f"{variable.path.replace('/', '_')}_accumulator",
            )
            for variable in variables
        ]

    def apply(
        self,
        grads: Iterable[Gradient],
        trainable_variables: Iterable[keras.Variable] | None = None,
    ) -> None:
        """Adds gradients up; the wrapped optimizer applies the sum in the last step of an update.

        Raises:
            PlanError: outside of a loop of `repeat`.
        """
        self._check_loop()
        grads, variables = self._built_for(grads, trainable_variables)
        variables = self._applied_to if variables is None else variables
        indices = {id(variable): index for index, variable in enumerate(self._applied_to)}
        accumulators = [self._accumulators[indices[id(variable)]] for variable in variables]
        pairs = [
            (accumulator, gradient, variable)
            for accumulator, gradient, variable in zip(
                accumulators, self.prepare(grads, variables), variables, strict=True
            )
            if gradient is not None
        ]
        for accumulator, gradient, variable in pairs:
            if variable.overwrite_with_gradient:
                new = ops.cast(gradient, accumulator.dtype)
                accumulator.assign(ops.maximum(accumulator.value, new))
            else:
                accumulator.assign_add(ops.cast(gradient, accumulator.dtype))

        def update() -> None:
            self._update([accumulator for accumulator, _, _ in pairs], [v for *_, v in pairs])

        if self.steps == 1:
            update()
            return
        step = self._step + 1
        is_last = holds_anywhere(cast(jax.Array, ops.equal(step, self.steps)))
        self._step.assign(ops.where(is_last, 0, step))
        ops.cond(is_last, update, lambda: None)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Gradient, keras.Variable]]) -> Any:
        """Accumulates `(gradient, variable)` pairs, and returns the number of updates."""
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, variables)
        return self.iterations

    def stateless_apply(
        self,
        optimizer_variables: Sequence[jax.Array],
        grads: Sequence[Gradient],
        trainable_variables: Sequence[jax.Array],
    ) -> NoReturn:
        """Refuses models that a strategy runs.

        Raises:
            PlanError: always.
        """
        raise _outside(self.name)

    def _update(
        self, accumulators: Sequence[keras.Variable], variables: Sequence[keras.Variable]
    ) -> None:
        gradients = [accumulator.value for accumulator in accumulators]
        if self._reduction == "mean":
            gradients = [
                gradient if variable.overwrite_with_gradient else gradient / self.steps
                for gradient, variable in zip(gradients, variables, strict=True)
            ]
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
        loop = enclosing_loop()
        if loop is None or not loop.is_counted:
            raise _outside(self.name)
        loop.requirements["steps of an update", self.steps] = self._check_iterations

    def _check_iterations(self, iterations: int) -> None:
        steps = self.steps
        if iterations % steps:
            fitting = max(iterations // steps, 1) * steps
            raise PlanError(
                f"A loop of {iterations} iterations accumulates the gradients of {steps} "
                f"iterations for each update, and {iterations} is not a multiple of {steps}. Set "
                f"n={fitting} in repeat(), or accumulate over another number of iterations in the "
                "optimizer."
            )


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class GradientAccumulationOptimizerV2(Minimizing, AccumulatingOptimizer):
    """Applies the sum of the gradients of `num_mini_batches` iterations of a loop.

    Args:
        opt: a Keras optimizer.
        num_mini_batches: iterations for each update.
        offload_weight_update_variables: without effect; True is an error where the device has no
            host memory.
        replicated_optimizer_state_sharding: without effect.
        dtype: of the accumulators: None, a dtype, or a function of a variable. `opt` receives
            gradients of this dtype, and must cast them if the variable has another one.
        reduction_method: SUM, MEAN or RUNNING_MEAN.
        name: of the new optimizer.

    Raises:
        OptionError: for a number below 1, or an unknown reduction method.
        DTypeError: for another dtype.
        PlanError: for state that is to be offloaded on a device without host memory.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: AnyDtype = None,
        reduction_method: ReductionMethod = Method.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ):
        _check_offload(offload_weight_update_variables, replicated_optimizer_state_sharding)
        AccumulatingOptimizer.__init__(
            self,
            opt,
            whole_number("num_mini_batches", num_mini_batches, 1),
            reduction="sum" if method_of(reduction_method) is Method.SUM else "mean",
            dtype=optimizer_dtype(dtype),
            keeps_dtype=True,
            name=name,
        )


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Accumulates on each replica, and applies the mean over replicas, once for each update."""

    def __init__(self, opt: keras.optimizers.Optimizer, *args: Any, **kwargs: Any):
        kwargs.setdefault("name", "CrossReplicaGradientAccumulationOptimizerV2")
        super().__init__(CrossReplicaOptimizer(opt), *args, **kwargs)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """Accumulates for SGD, with or without momentum."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ):
        inner = opt
        while not isinstance(inner, keras.optimizers.SGD):
            inner = getattr(inner, "inner_optimizer", None)
            if inner is None:
                raise OptionError(
                    "GradientAccumulationOptimizer takes SGD, with or without momentum. Received: "
                    f"{type(opt).__name__}. Set GradientAccumulationOptimizerV2 for others."
                )
        super().__init__(opt, num_mini_batches, name=name)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Accumulates for SGD on each replica, and applies the mean over replicas."""

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ):
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)


def _check_offload(offloads: bool | None, shards: bool) -> None:
    """Warns about options for the state of an optimizer that have no effect in a loop.

    Raises:
        PlanError: for state that is to be offloaded on a device without host memory.
    """
    device = current_system().devices[0]
    if offloads and host_memory(device) is None:
        raise PlanError(
            "offload_weight_update_variables=True keeps the optimizer's variables in host memory, "
            f"and {device} has no separate host memory. Set offload_weight_update_variables=None, "
            "which offloads them where that is possible."
        )
    if offloads:
        warn_no_effect(
            "offload_weight_update_variables of a gradient accumulation optimizer",
            "A loop keeps them on the device. Call model.set_offload_options(), and use fit().",
        )
    if shards:
        warn_no_effect(
            "replicated_optimizer_state_sharding of a gradient accumulation optimizer",
            "Each replica of a loop has the whole state. Set it in pipeline(), or on a model.",
        )


def _outside(name: str) -> PlanError:
    return PlanError(
        f"{name} accumulates over the iterations of a loop, and was called outside of a loop of "
        "repeat(). Apply it in the body of repeat(). A model that is trained by fit() accumulates "
        "with model.set_gradient_accumulation_options()."
    )
