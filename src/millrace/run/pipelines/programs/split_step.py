"""One micro-batch of a model's loop, traced once and cut into stages."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import jax
import keras

from millrace._compat.jaxpr import trace
from millrace._compat.keras_steps import compute_forward
from millrace.base.options import NO_TAPS, TapRequest
from millrace.base.pytrees import ArrayTree, SpecTree
from millrace.errors import ModelError
from millrace.programs.plan import Mode
from millrace.programs.steps.loss_weights import Losses, report, without_divisors
from millrace.programs.steps.own_step import OwnStep, has_own_step
from millrace.programs.steps.state import State, as_lists, from_step, variable_text
from millrace.programs.steps.step import logs_follow_from_metrics
from millrace.programs.taps.taps import collecting
from millrace.programs.taps.tensors import activations_tapped
from millrace.run.pipelines.assignment.layer_calls import LayerCall, marked_calls
from millrace.run.pipelines.programs.equation_stages import MODEL_SCOPE, Marks
from millrace.run.pipelines.programs.split import Slot, Split, split


def split_step(
    model: keras.Model,
    mode: Mode,
    calls: Sequence[LayerCall],
    marks: Marks,
    state: State,
    batch: SpecTree,
    each_step: bool,
    taps: TapRequest = NO_TAPS,
    weighs: bool = False,
    is_part: bool = False,
) -> Split:
    """Traces the forward of one step and cuts it.

    Args:
        model: a compiled Keras model.
        mode: the loop whose step it is. In training the step returns the loss and the changed
            state; its stages are differentiated one by one, and the update is separate.
        calls: the layer calls that the marks number; none where the model's `call` has the scopes.
        marks: the stage of each.
        state: specs of the values.
        batch: specs of one batch.
        each_step: whether every step returns logs, not only the last.
        taps: the requested statistics of layer outputs.
        weighs: whether micro-batches weigh what their loss divides by.
        is_part: whether the batch is a part of another one.

    Raises:
        ModelError: if the stages cannot be run as a pipeline.
    """
    wants_logs = mode is not Mode.PREDICT and (
        each_step or not logs_follow_from_metrics(model, mode)
    )

    losses = Losses(taps=weighs)

    def step(state: State, batch: ArrayTree) -> dict[str, Any]:
        if mode is Mode.TRAIN and has_own_step(model, mode):
            loss, new, result = OwnStep(model, state, batch, losses).forward(state, batch)
        else:
            with losses.noticed():
                loss, new, result = compute_forward(model, mode.value, as_lists(state, mode), batch)
            new = from_step(new, state, model, mode)
        if mode is not Mode.PREDICT and not wants_logs:
            result = None
        changed = {"non_trainable": new.non_trainable, "metric": new.metric}
        return {"loss": loss, "result": result, **changed}

    def tapped_step(state: State, batch: ArrayTree) -> dict[str, Any]:
        outputs, tapped = collecting(step)(state, batch)
        tapped, divisors = without_divisors(tapped)
        # As a share of the values: as a cotangent, it must not leave the range of float16.
        shares = [d / n for d, n in zip(divisors[:1], losses.sizes, strict=False)]
        return {**outputs, "tap": tapped, "share": shares}

    # Inside the marks: statistics belong to the stage of their layer.
    with (
        marked_calls(model, calls),
        _marked_model(model),
        activations_tapped(model, taps),
    ):
        graph, specs = trace(tapped_step, state, batch)
    report(losses)
    if is_part and losses.sums:
        raise ModelError(
            f"A loss of {model.name!r} is a sum over the rows of a batch (reduction='sum'), and "
            "micro_batch divides its batches among the stages, whose gradients are averaged. Set "
            "reduction='sum_over_batch_size', or micro_batch='whole'."
        )
    inputs = [Slot(role, index) for role, values in state.items() for index in range(len(values))]
    inputs += [Slot("batch", index) for index in range(len(jax.tree.leaves(batch)))]
    outputs = [
        Slot(role, index)
        for role in sorted(specs)  # the order of leaves in a dict
        for index in range(len(jax.tree.leaves(specs[role])))
    ]
    return split(
        graph, inputs, outputs, specs["result"], marks,
        lambda slot: variable_text(model, slot.role, slot.index), specs["tap"],
        losses.sizes[0] / jax.tree.leaves(batch)[0].shape[0] if weighs else None,
    )  # fmt: skip


@contextmanager
def _marked_model(model: keras.Model) -> Iterator[None]:
    """Puts a scope around the model's operations, to tell them from its loss and metrics."""
    stock = cast(Callable[..., object], model.stateless_call)

    def stateless_call(*args: object, **kwargs: object) -> object:
        with jax.named_scope(MODEL_SCOPE):
            return stock(*args, **kwargs)

    object.__setattr__(model, "stateless_call", stateless_call)
    try:
        yield
    finally:
        object.__delattr__(model, "stateless_call")
