"""Optimizers of `tf.compat.v1.train`, for the optimizer functions of pipelines.

GradientDescentOptimizer(rate)          keras.optimizers.SGD(rate)
MomentumOptimizer(rate, momentum)       keras.optimizers.SGD(rate, momentum)
AdamOptimizer(rate)                     keras.optimizers.Adam(rate, epsilon=1e-8)
optimizer.minimize(loss)                an error: a value that has been computed has no gradients
"""

from typing import Any, NoReturn

import keras

from millrace_ipu.tensorflow.unsupported import refuse

_INSTEAD = (
    "tf.GradientTape around the loss, and apply_gradients(zip(gradients, variables)); in a "
    "pipeline, OptimizerFunctionOutput(optimizer, loss)"
)


class _OfTensorFlow1(keras.optimizers.Optimizer):
    """Refuses the methods that take a loss, and drops `use_locking`."""

    _NAME = ""

    def __init__(self, *args: Any, use_locking: bool = False, **kwargs: Any) -> None:
        kwargs["name"] = kwargs.get("name") or self._NAME
        super().__init__(*args, **kwargs)

    def minimize(self, *_: object, **__: object) -> NoReturn:
        """Raises an error: a value that has been computed has no gradients."""
        refuse(f"tf.compat.v1.train.{type(self).__name__}.minimize", _INSTEAD)

    def compute_gradients(self, *_: object, **__: object) -> NoReturn:
        """Raises an error: a value that has been computed has no gradients."""
        refuse(f"tf.compat.v1.train.{type(self).__name__}.compute_gradients", _INSTEAD)

    # `millrace port` finds calls of methods that only raise.
    minimize.only_raises = compute_gradients.only_raises = True  # type: ignore[attr-defined]


class GradientDescentOptimizer(_OfTensorFlow1, keras.optimizers.SGD):
    """Gradient descent."""

    _NAME = "GradientDescent"


class MomentumOptimizer(_OfTensorFlow1, keras.optimizers.SGD):
    """Gradient descent with momentum; equal to TensorFlow's for a constant learning rate."""

    _NAME = "Momentum"

    def __init__(
        self, learning_rate: Any, momentum: float, use_nesterov: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, float(momentum), use_nesterov, **kwargs)


class AdamOptimizer(_OfTensorFlow1, keras.optimizers.Adam):
    """Adam."""

    _NAME = "Adam"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, **kwargs)


OPTIMIZERS: dict[str, Any] = {
    kind.__name__: kind for kind in (AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer)
}
