"""The optimizers of `ipu_tensorflow_addons`, with the arguments that they had.

AdamIpuOptimizer, SGDIpuOptimizer   -> keras.optimizers.Adam, SGD
gradient_transformers=[f]              f(pairs of gradients and variables), before they are applied

Dtypes of states and outlining have no effect: states have the dtype of their variable, and XLA
shares equal code.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras

from millrace.extend import trained_by
from millrace_ipu.tensorflow.no_operation import warn_no_effect

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
