"""The optimizers of `ipu_tensorflow_addons`, with the arguments that they had.

AdamIpuOptimizer, SGDIpuOptimizer   -> keras.optimizers.Adam, SGD
LAMBIpuOptimizer                       LAMB (You et al., 2020, algorithm 2), with decay in the ratio
gradient_transformers=[f]              f(pairs of gradients and variables), before they are applied

Dtypes of states and outlining have no effect: states have the dtype of their variable, and XLA
shares equal code.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from millrace.extend import trained_by
from millrace_ipu.ipu.no_effect import warn_no_effect

_ADVICE = "States have the dtype of their variable, and XLA shares equal code itself."
_PLAIN = (None, False, "float32", ("float32",), ("float32", "float32"))
Pairs = Iterable[tuple[Any, keras.Variable]]


class _OfAddons(keras.optimizers.Optimizer):
    """Takes the arguments of the addons' base class, and transforms gradients."""

    def __init__(
        self,
        *args: Any,
        m_dtype: object = None,
        v_dtype: object = None,
        vhat_dtype: object = None,
        momentum_accum_dtype: object = None,
        optimizer_compute_precisions: object = None,
        outline_apply_gradients: object = None,
        outline_apply_gradients_kwargs: object = None,
        gradient_transformers: Iterable[Callable[[Any], Pairs]] | None = None,
        **kwargs: Any,
    ):
        for name, value in list(locals().items()):
            is_plan = name.endswith(("dtype", "precisions")) or name.startswith("outline")
            if is_plan and value not in _PLAIN:
                warn_no_effect(f"{type(self).__name__}({name}=)", _ADVICE)
        super().__init__(*args, **kwargs)
        self.gradient_transformers = list(gradient_transformers or ())

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Transforms the gradients, and applies them."""
        pairs: Any = list(zip(grads, trainable_variables or trained_by(self), strict=True))
        for transform in self.gradient_transformers:
            pairs = list(transform(pairs))
        super().apply([gradient for gradient, _ in pairs], trainable_variables)


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class AdamIpuOptimizer(_OfAddons, keras.optimizers.Adam):
    """`keras.optimizers.Adam`, with the arguments of the IPU's."""


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class SGDIpuOptimizer(_OfAddons, keras.optimizers.SGD):
    """`keras.optimizers.SGD`, with the arguments of the IPU's."""


@keras.saving.register_keras_serializable(package="millrace_ipu.ipu")
class LAMBIpuOptimizer(_OfAddons):
    """LAMB: Adam's step with weight decay, scaled for each variable by its norm.

    Args:
        learning_rate: a number or a schedule.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of their squares.
        epsilon: added to the root of the latter.
        weight_decay_rate: share of the variable that is added to the step.
        exclude_from_weight_decay: patterns of names of variables without decay.
        exclude_from_layer_adaptation: patterns of names of variables whose step is not scaled;
            None takes those of `exclude_from_weight_decay`.
        name: of the optimizer.
        debiasing: whether the means are corrected for their start at zero.
        weight_norm_clip: upper limit of the norm of a variable; None for no limit.
        **kwargs: of `keras.optimizers.Optimizer`, and `gradient_transformers`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        weight_norm_clip: float | None = None,
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.weight_decay_rate, self.debiasing = weight_decay_rate, debiasing
        self.weight_norm_clip = weight_norm_clip
        self.not_decayed = list(exclude_from_weight_decay or ())
        adapted = exclude_from_layer_adaptation
        self.not_adapted = self.not_decayed if adapted is None else list(adapted)

    def build(self, variables: Any) -> None:
        """Makes the means of gradients and of their squares."""
        if self.built:
            return
        super().build(variables)
        self._means, self._squares = self.add_optimizer_variables(variables, ["m", "v"])
        self._indices = {id(variable): index for index, variable in enumerate(variables)}

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Updates one variable."""
        ops: Any = keras.ops
        index = self._indices[id(variable)]
        mean, square = self._means[index], self._squares[index]
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        self.assign(mean, self.beta_1 * mean + (1 - self.beta_1) * gradient)
        self.assign(square, self.beta_2 * square + (1 - self.beta_2) * ops.square(gradient))
        m, v = ops.convert_to_tensor(mean), ops.convert_to_tensor(square)
        if self.debiasing:
            iterations: Any = self.iterations
            count = ops.cast(iterations + 1, variable.dtype)
            m = m / (1 - ops.power(ops.cast(self.beta_1, variable.dtype), count))
            v = v / (1 - ops.power(ops.cast(self.beta_2, variable.dtype), count))
        step = m / (ops.sqrt(v) + self.epsilon)
        value = ops.convert_to_tensor(variable)
        if self.weight_decay_rate and not _matches(self.not_decayed, variable):
            step = step + self.weight_decay_rate * value
        self.assign_sub(variable, rate * self._ratio(value, step, variable) * step)

    def _ratio(self, value: Any, step: Any, variable: keras.Variable) -> Any:
        if _matches(self.not_adapted, variable):
            return 1.0
        ops: Any = keras.ops
        of_value, of_step = (ops.sqrt(ops.sum(ops.square(each))) for each in (value, step))
        if self.weight_norm_clip is not None:
            of_value = ops.minimum(of_value, self.weight_norm_clip)
        both = ops.logical_and(of_value > 0, of_step > 0)
        return ops.where(both, of_value / ops.where(both, of_step, 1.0), 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make the same optimizer."""
        names = ("beta_1", "beta_2", "epsilon", "weight_decay_rate", "debiasing")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in (*names, "weight_norm_clip")},
            "exclude_from_weight_decay": self.not_decayed,
            "exclude_from_layer_adaptation": self.not_adapted,
        }


def _matches(patterns: Sequence[str], variable: keras.Variable) -> bool:
    return any(re.search(pattern, variable.path) for pattern in patterns)
