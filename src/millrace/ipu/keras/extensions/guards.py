"""What a model of a strategy must not override, said before anything is compiled."""

from typing import Any

import keras

from millrace._compat.keras_graph import has_own_call
from millrace.errors import ModelError, OptionError
from millrace.ipu.keras.extensions.kinds import ModelExtension
from millrace.optimizers.accumulating import AccumulatingOptimizer
from millrace.plan import Mode

_MADE = ("make_train_function", "make_test_function", "make_predict_function")
_DISABLE = "IPUStrategy(enable_keras_extensions=False)"


def check_overrides(model: Any, mode: Mode, is_pipelined: bool) -> None:
    """Refuses overrides that the strategy would not call.

    Args:
        model: the one that is about to run.
        mode: of the loop that it runs.
        is_pipelined: whether its layers are in stages.

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
    step = f"{mode.value}_step"
    if is_pipelined and getattr(type(model), step) is not getattr(keras.Model, step):
        raise ModelError(
            f"{name} is pipelined and overrides {step}(), which runs the whole model at once. "
            "Override compute_loss() or compute_metrics() instead, which the last stage calls, "
            "or call reset_pipeline_stage_assignment()."
        )
    if is_pipelined and has_own_call(model) and not isinstance(model, ModelExtension):
        raise ModelError(
            f"{name} is pipelined and overrides call(), of which the stages of its layers know "
            "nothing. Remove the override, derive the model from keras.Model with a call() only, "
            "or call reset_pipeline_stage_assignment()."
        )


def check_optimizer(model: Any, setter: str) -> None:
    """Refuses an optimizer that accumulates too, or whose own `minimize` would be passed over.

    One that derives from the base of all optimizers may have one: there is none to override.

    Args:
        model: one whose gradients accumulate over batches.
        setter: the method that says over how many.

    Raises:
        OptionError: naming the optimizer.
    """
    optimizer = model.optimizer
    _check_accumulation(model, optimizer, setter)
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
        _check_accumulation(model, optimizer, setter)
    for kind in type(optimizer).__mro__:
        is_keras = kind.__module__.split(".")[0] == "keras"
        if is_keras or kind.__bases__ == (keras.optimizers.Optimizer,):
            return
        if "minimize" in vars(kind):
            raise OptionError(
                f"The optimizer {type(optimizer).__name__} of {model.name!r} overrides minimize(), "
                "which does not run where several batches make an update. Override "
                "update_step() or apply() instead."
            )


def _check_accumulation(model: Any, optimizer: Any, setter: str) -> None:
    own = getattr(optimizer, "gradient_accumulation_steps", None)
    if not own and not isinstance(optimizer, AccumulatingOptimizer):
        return
    what = f"gradient_accumulation_steps={own} of its optimizer" if own else "its optimizer"
    raise OptionError(
        f"The model {model.name!r} would accumulate gradients twice: by {what} "
        f"{type(optimizer).__name__}, and as its strategy was told. Compile it with the optimizer "
        f"alone, and call model.{setter}(gradient_accumulation_steps_per_replica=...)."
    )
