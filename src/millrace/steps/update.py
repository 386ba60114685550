"""One gradient, one change of the weights."""

import keras

from millrace.steps.accumulate import Gradients
from millrace.steps.prepare import applying_prepared
from millrace.steps.state import State, as_lists, as_state, settle


def apply_gradients(model: keras.Model, state: State, gradients: Gradients) -> State:
    """Runs the optimizer once: unscaling, clipping, schedule, weight decay and EMA are its own."""
    trainable, non_trainable, optimizer, metrics = as_lists(state)
    with applying_prepared():
        trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    return settle(as_state((trainable, non_trainable, optimizer, metrics)), state)
