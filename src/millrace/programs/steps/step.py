"""One step: gradients, and the update.

    gradient of a micro-batch -> optimizer.prepare(...) -> accumulated -> the update

An optimizer, or one that it wraps, may have a method `prepare(gradients, variables)`, which runs
on the gradients of each micro-batch. When `are_prepared` returns True the optimizer must not
prepare again the gradients that it applies.
"""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import jax
import keras

from millrace._compat.keras_optimizers import wrapped_chain
from millrace.base.pytrees import ArrayTree
from millrace.base.threads.scoped_value import ScopedValue
from millrace.programs.plan import Mode, Plan
from millrace.programs.recomputation.step import (
    Updating,
    accumulating_value_and_grad,
    recomputes,
    recomputing_value_and_grad,
)
from millrace.programs.steps.accumulate import Accumulator, Factor, Gradients
from millrace.programs.steps.loss_weights import Losses, report, weight_in_rows, with_divisors
from millrace.programs.steps.micro_batches import compute_in_parts
from millrace.programs.steps.own_step import compute_gradients, own_step
from millrace.programs.steps.scopes import KERAS_STEP, UPDATE
from millrace.programs.steps.state import State, as_lists, from_step, with_dtypes_of
from millrace.programs.taps.taps import is_open, value_and_grad
from millrace.programs.taps.tensors import loss_tapped, tap_loss

Step: TypeAlias = Callable[[State, ArrayTree], tuple[State, ArrayTree]]
# Returns gradients, the state without the update, logs.
GradientStep: TypeAlias = Callable[[State, ArrayTree], tuple[Gradients, State, ArrayTree]]
# Adds the gradients, times a coefficient, to others.
AccumulatingStep: TypeAlias = Callable[
    [State, ArrayTree, Gradients, Factor], tuple[Gradients, State, ArrayTree]
]


class PendingUpdate(NamedTuple):
    """An update that has been computed and not applied."""

    gradients: Gradients
    after: State = State()  # the values that its micro-batches have changed
    # Of a `train_step` that takes gradients in turn: those of the turns before the last.
    earlier: tuple[Any, ...] = ()


def make_step(model: keras.Model, mode: Mode) -> Step:
    """Returns the step that Keras's own loop would run, with state first in its result.

    It calls the model's `train_step`, `test_step` or `predict_step`, so an override of these runs
    unchanged. The second result is the logs of the step, or its outputs when predicting.
    """

    def predict(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
        outputs, non_trainable = model.predict_step(as_lists(state, mode), batch)
        return with_dtypes_of(state.replace(non_trainable=non_trainable), state, model), outputs

    def train_or_test(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
        name = f"{mode.value}_step"
        with _keras_scope(model, name):
            logs, new = getattr(model, name)(as_lists(state, mode), batch)
        return from_step(new, state, model, mode), logs

    return predict if mode is Mode.PREDICT else train_or_test


def _keras_scope(model: keras.Model, name: str) -> AbstractContextManager[Any]:
    """Returns a name scope around a step that is Keras's own."""
    is_own = getattr(type(model), name) is getattr(keras.Model, name)
    return jax.named_scope(KERAS_STEP) if is_own else contextlib.nullcontext()


def make_gradient_step(model: keras.Model, plan: Plan) -> GradientStep:
    """Returns a step without the update: gradients, the new state with old weights, logs.

    Where losses weigh, the weight of the micro-batch follows the gradients. Values that the model
    taps are tapped in the trace of the caller.
    """
    recomputing = recomputing_value_and_grad(plan) if recomputes(plan) else None

    def gradient_step(
        state: State, batch: ArrayTree, earlier: Sequence[Gradients] = ()
    ) -> tuple[Gradients, State, ArrayTree]:
        taps = is_open() or plan.weighs_losses
        differentiate: Any = recomputing or (value_and_grad if taps else None)
        losses = Losses(taps=plan.weighs_losses)
        if plan.division.parts > 1:
            computed = compute_in_parts(model, plan, state, batch, differentiate)
            if plan.taps.loss and is_open():
                tap_loss(computed.loss)
            gradients, non_trainable, metrics, logs, _, divisors = computed
            new = state.replace(non_trainable=non_trainable, metric=metrics)
        else:
            if plan.taps.loss and is_open():
                differentiate = loss_tapped(differentiate or value_and_grad)
            compute = with_divisors(compute_gradients) if plan.weighs_losses else _alone
            (gradients, new, logs), divisors = compute(
                model, state, batch, differentiate, earlier, losses
            )
            report(losses)
            new = with_dtypes_of(new, state, model)
        gradients = prepared(model.optimizer, gradients, model.trainable_variables)
        weights = [weight_in_rows(plan, divisors[0])] if plan.weighs_losses else []
        return [*gradients, *weights], new, logs

    return gradient_step


def make_updating_step(model: keras.Model, plan: Plan) -> Step:
    """Returns a step with recomputation that updates each weight once its gradient is there."""

    def step(state: State, batch: ArrayTree) -> tuple[State, ArrayTree]:
        def update(
            trainable: Sequence[jax.Array], optimizer: Sequence[jax.Array], gradients: Gradients
        ) -> tuple[Sequence[jax.Array], Sequence[jax.Array]]:
            gradients = prepared(model.optimizer, gradients, model.trainable_variables)
            with_values = state.replace(trainable=trainable, optimizer=optimizer)
            new = apply_gradients(model, plan, with_values, PendingUpdate(gradients))
            return list(new.trainable), list(new.optimizer)

        differentiate = recomputing_value_and_grad(plan, Updating(update, list(state.optimizer)))
        (trainable, optimizer), new, logs = compute_gradients(model, state, batch, differentiate)
        new = new.replace(trainable=trainable, optimizer=optimizer)
        return with_dtypes_of(new, state, model), logs

    return step


def make_accumulating_step(
    model: keras.Model, plan: Plan, accumulator: Accumulator
) -> AccumulatingStep:
    """Returns a step with recomputation that adds up each gradient once it is there."""

    def step(
        state: State, batch: ArrayTree, accumulated: Gradients, coefficient: Factor
    ) -> tuple[Gradients, State, ArrayTree]:
        def add(gradients: Gradients, accumulated: Gradients) -> Gradients:
            gradients = prepared(model.optimizer, gradients, model.trainable_variables)
            return accumulator.add(accumulated, gradients, coefficient * values_in_row())

        def values_in_row() -> float:  # of the loss; known once the forward is traced
            return losses.sizes[0] / plan.batch.rows if plan.weighs_losses else 1.0

        losses, shares = Losses(taps=plan.weighs_losses), []
        sums = accumulated[: len(model.trainable_variables)]
        differentiate = accumulating_value_and_grad(plan, add, sums)
        if plan.weighs_losses:
            differentiate = _weighing(losses, differentiate, shares)
        sums, new, logs = compute_gradients(model, state, batch, differentiate, losses=losses)
        report(losses)
        total = [accumulated[-1] + coefficient * values_in_row() * share for share in shares]
        return [*sums, *total], with_dtypes_of(new, state, model), logs

    return step


def _weighing(losses: Losses, differentiate: Any, shares: list[jax.Array]) -> Any:
    """Returns a transformation that differentiates the loss times the share of values that count.

    It appends that share, and not the weight: of float16, gradients must not leave the range.
    """

    def transform(function: Callable[..., Any]) -> Callable[..., Any]:
        def within(*args: Any, **kwargs: Any) -> tuple[jax.Array, Any]:
            (loss, auxiliary), divisors = with_divisors(function)(*args, **kwargs)
            share = divisors[0].astype("float32") / losses.sizes[0]
            return loss * share.astype(loss.dtype), (auxiliary, share)

        def run(*args: Any, **kwargs: Any) -> Any:
            (loss, (auxiliary, share)), gradients = differentiate(within)(*args, **kwargs)
            shares.append(share)
            return (loss, auxiliary), gradients

        return run

    return transform


def _alone(*args: Any) -> tuple[Any, list[jax.Array]]:
    return compute_gradients(*args), []


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


_prepared = ScopedValue(False)


def prepared(
    optimizer: keras.optimizers.Optimizer | None,
    gradients: Sequence[jax.Array],
    variables: Sequence[keras.Variable],
) -> list[jax.Array]:
    """Returns gradients of a micro-batch in the form in which they are accumulated.

    Args:
        optimizer: optimizer of the model; None if it has none.
        gradients: one for each of `variables`.
        variables: some or all of the variables that the optimizer trains.
    """
    for each in wrapped_chain(optimizer):  # loss scaling wraps one
        if (prepare := getattr(each, "prepare", None)) is not None:
            return prepare(list(gradients), variables)
    return list(gradients)


def applying_prepared() -> AbstractContextManager[Any]:
    """Returns a context manager for an update whose gradients were all prepared."""
    return _prepared.bound_to(True)


def are_prepared() -> bool:
    """Whether the gradients that an optimizer receives were prepared before they were added up."""
    return _prepared.get()


def apply_gradients(
    model: keras.Model,
    plan: Plan,
    state: State,
    update: PendingUpdate,
    specs: State | None = None,
) -> State:
    """Runs the optimizer once, with its unscaling, clipping, schedule, weight decay and EMA.

    Of a `train_step` that the user wrote, runs all that follows from the gradients.

    Args:
        model: a compiled Keras model.
        plan: of its training.
        state: values.
        update: with its gradients.
        specs: of the whole state, where `state` has weights and the optimizer's values alone.
    """
    trainable, optimizer = list(state.trainable), list(state.optimizer)
    with applying_prepared(), jax.named_scope(UPDATE):
        if (own := own_step(model, plan, specs or state)) is not None:
            new = own.update(state, update.gradients, update.earlier)
        else:
            trainable, optimizer = model.optimizer.stateless_apply(
                optimizer, update.gradients, trainable
            )
            new = state.replace(trainable=trainable, optimizer=optimizer)
    return with_dtypes_of(new, state, model)
