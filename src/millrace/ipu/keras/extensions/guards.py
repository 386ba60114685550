"""What a model of a strategy must not override, said before anything is compiled."""

from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import ModelError, OptionError
from millrace.ipu.keras.extensions.kinds import ModelExtension

_MADE = ("make_train_function", "make_test_function", "make_predict_function")
_DISABLE = "IPUStrategy(enable_keras_extensions=False)"


def check_overrides(model: Any, is_pipelined: bool) -> None:
    """Refuses overrides that the strategy would not call.

    Raises:
        ModelError: naming the function and the model.
    """
    name = f"{type(model).__name__} {model.name!r}"
    for function in _MADE:
        if getattr(type(model), function) is not getattr(keras.Model, function):
            raise ModelError(
                f"{name} overrides {function}(), which is what the strategy provides. Remove the "
                f"override, or build the model under an {_DISABLE}."
            )
    if is_pipelined and has_own_call(model) and not isinstance(model, ModelExtension):
        raise ModelError(
            f"{name} is pipelined and overrides call(), of which the stages of its layers know "
            "nothing. Remove the override, derive the model from keras.Model with a call() only, "
            "or call reset_pipeline_stage_assignment()."
        )


def check_optimizer(model: Any) -> None:
    """Refuses an optimizer whose own `minimize` would be passed over.

    One that derives from the base of all optimizers may have one: there is none to override.

    Raises:
        OptionError: naming the optimizer.
    """
    optimizer = model.optimizer
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    for kind in type(optimizer).__mro__:
        is_keras = kind.__module__.split(".")[0] == "keras"
        if is_keras or kind.__bases__ == (keras.optimizers.Optimizer,):
            return
        if "minimize" in vars(kind):
            raise OptionError(
                f"The optimizer {type(optimizer).__name__} of {model.name!r} overrides minimize(), "
                "which does not run where several batches make an update. Override "
                "apply_gradients() instead."
            )
