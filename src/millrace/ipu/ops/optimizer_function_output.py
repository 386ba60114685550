"""What the optimizer function of a pipeline returns.

OptimizerFunctionOutput(opt, loss, variables=...)   -> (optimizer, loss, variables)
"""

from typing import Any

import jax
import keras

from millrace.errors import DTypeError, OptionError


class OptimizerFunctionOutput:
    """An optimizer, the loss that it lowers, and what it trains."""

    def __init__(
        self,
        opt: Any,
        loss: Any,
        compute_gradients_args: Any = None,
        compute_gradients_kwargs: Any = None,
        apply_gradients_args: Any = None,
        apply_gradients_kwargs: Any = None,
        variables: Any = None,
        tape: Any = None,
    ):
        arguments = {
            "opt": (opt, keras.optimizers.Optimizer),
            "loss": (loss, jax.Array),
            "compute_gradients_args": (compute_gradients_args, tuple),
            "compute_gradients_kwargs": (compute_gradients_kwargs, dict),
            "apply_gradients_args": (apply_gradients_args, tuple),
            "apply_gradients_kwargs": (apply_gradients_kwargs, dict),
            "variables": (variables, (tuple, list)),
        }
        for name, (value, kind) in arguments.items():
            required = name in ("opt", "loss")
            if (required or value is not None) and not isinstance(value, kind):
                kinds = kind if isinstance(kind, tuple) else (kind,)
                raise DTypeError(
                    f"{name} of OptimizerFunctionOutput is a "
                    f"{' or '.join(each.__name__ for each in kinds)}. Received: {value!r} of type "
                    f"{type(value).__name__}."
                )
        if tape is not None and not callable(getattr(tape, "gradient", None)):
            raise DTypeError(
                f"tape of OptimizerFunctionOutput is a GradientTape. Received: {tape!r}."
            )
        if compute_gradients_args is not None or compute_gradients_kwargs is not None:
            raise OptionError(
                "compute_gradients_args and compute_gradients_kwargs belong to optimizers of "
                "TensorFlow 1, and opt is one of Keras. Leave them out; variables says what it "
                "trains."
            )
        if variables is not None and tape is not None:
            raise OptionError(
                "OptimizerFunctionOutput takes variables or tape, not both: each says what is "
                "trained. Remove one of them."
            )
        self.opt, self.loss, self.variables, self.tape = opt, loss, variables, tape
