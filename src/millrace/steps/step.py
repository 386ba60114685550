"""One step of each of Keras's loops, as a pure function of state and batch."""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras

from millrace._compat.keras_steps import compute_gradient_step, metric_logs
from millrace.plan import Mode, Plan
from millrace.pytrees import ArrayTree
from millrace.recomputation.step import recomputing_value_and_grad
from millrace.steps.accumulate import Gradients
from millrace.steps.state import State, as_lists, as_state, with_dtypes_of
from millrace.steps.update import prepared
from millrace.taps.taps import is_open, value_and_grad
from millrace.taps.tensors import loss_tapped

Step: TypeAlias = Callable[[State, ArrayTree], tuple[State, ArrayTree]]
# Returns gradients, the state without the update, logs.
GradientStep: TypeAlias = Callable[[State, ArrayTree], tuple[Gradients, State, ArrayTree]]


def make_step(model: keras.Model, mode: Mode) -> Step:
    """Returns the step that Keras's own loop would run, with state first in its result.

    It calls the model's `train_step`, `test_step` or `predict_step`, so an override of these runs
    unchanged. The second result is the logs of the step, or its outputs when predicting.
    """

    def train(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
        logs, new = model.train_step(as_lists(state), batch)
        return with_dtypes_of(as_state(new), state), logs

    def test(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
        logs, new = model.test_step(as_lists(state), batch)
        return with_dtypes_of(as_state(new), state), logs

    def predict(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
        outputs, non_trainable = model.predict_step(as_lists(state), batch)
        return with_dtypes_of(as_state((state[0], non_trainable)), state), outputs

    return {Mode.TRAIN: train, Mode.TEST: test, Mode.PREDICT: predict}[mode]


def make_gradient_step(model: keras.Model, plan: Plan) -> GradientStep:
    """Returns a step without the update: gradients, the new state with old weights, logs.

    Values that the model taps are tapped in the trace of the caller.
    """
    recomputing = None if plan.recompute is None else recomputing_value_and_grad(plan)

    def gradient_step(state: State, batch: ArrayTree) -> tuple[Gradients, State, ArrayTree]:
        differentiate: Any = recomputing or (value_and_grad if is_open() else None)
        if plan.taps.loss and is_open():
            differentiate = loss_tapped(differentiate or value_and_grad)
        gradients, non_trainable, metrics, logs = compute_gradient_step(
            model, as_lists(state), batch, differentiate
        )
        gradients = prepared(model.optimizer, gradients, model.trainable_variables)
        new = as_state((state[0], non_trainable, state[2], metrics))
        return gradients, with_dtypes_of(new, state), logs

    return gradient_step


def logs_follow_from_metrics(model: keras.Model, mode: Mode) -> bool:
    """Whether the logs of a step are a function of the metrics' state alone.

    They are unless the user wrote a step or a `compute_metrics`. A loop need not carry such logs:
    it computes them once, after the last step.
    """
    step = {Mode.TRAIN: "train_step", Mode.TEST: "test_step"}.get(mode)
    return step is not None and all(
        getattr(type(model), name) is getattr(keras.Model, name)
        for name in (step, "compute_metrics")
    )


def final_logs(model: keras.Model, state: State) -> Any:
    """Returns the logs that follow from the metrics' state after the last step."""
    return metric_logs(model, state[-1])
