"""Private Keras: scopes and steps.

`current_scope`   the stateless scope from which this thread reads variables.
`stored_value`    the value of a variable outside of every scope; its `value` asks the scope first.
`let_scopes_branch`   `keras.ops.cond` on JAX loses the assignments of its branches, such as those
                  of optimizers that scale the loss; it has no public hook.

`compute_gradient_step`   loss, gradients and metrics, which `train_step` computes with the update.
`compute_forward`         loss and metrics, for all three loops.
`metric_logs`             the logs of the metrics for given values.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import keras
from jax.typing import ArrayLike
from keras.src.backend.common.stateless_scope import get_stateless_scope

from millrace._compat.patch_table import COND, COND_OF_OPTIMIZERS
from millrace._compat.patches import replace
from millrace._compat.versions import owners
from millrace.base.pytrees import ArrayTree

METRICS_SCOPE = "metrics"  # in names of operations; Keras has none


def current_scope() -> Any:
    """Returns the innermost `keras.StatelessScope` that is entered, None if there is none."""
    return get_stateless_scope()


def stored_value(variable: keras.Variable) -> Any:
    """Returns a variable's own array; None if it was created in a scope that is still open."""
    private: Any = variable
    return private._value


def let_scopes_branch() -> None:
    """Lets a scope with a method `branch` run Keras's conditionals inside it."""

    def wrapper(original: Callable[..., object]) -> Callable[..., object]:
        def cond(
            pred: ArrayLike, true_fn: Callable[[], object], false_fn: Callable[[], object]
        ) -> object:
            branch = getattr(get_stateless_scope(), "branch", None)
            if branch is None:
                return original(pred, true_fn, false_fn)
            return branch(original, pred, true_fn, false_fn)

        return cond

    replace(COND, wrapper)
    if len(owners("cond")) > 1:  # else both are one place
        replace(COND_OF_OPTIMIZERS, wrapper)


def compute_gradient_step(
    model: keras.Model,
    state: Sequence[Any],
    batch: ArrayTree,
    value_and_grad: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Runs one micro-batch forward and backward.

    Args:
        model: a compiled Keras model.
        state: trainable, non-trainable, optimizer and metric values, in the model's order.
        batch: x, y and sample weights, as the data adapter yields them.
        value_and_grad: differentiates a function of `(loss, auxiliary)`; None is JAX's own.

    Returns:
        Gradients in the order of the trainable variables (of the scaled loss, where the optimizer
        scales it), new non-trainable values, new metric values, logs.
    """
    differentiate = value_and_grad or functools.partial(jax.value_and_grad, has_aux=True)
    private: Any = model  # the method is of a mix-in for each backend
    compute = differentiate(private.compute_loss_and_updates)
    (_, gradients), (_, non_trainable, _, metrics), logs = _run_forward(
        model, compute, state, batch, training=True
    )
    return gradients, non_trainable, metrics, logs


def compute_forward(
    model: keras.Model, loop: str, state: Sequence[Any], batch: ArrayTree
) -> tuple[Any, Any, Any]:
    """Runs one micro-batch forward.

    Args:
        model: a Keras model, compiled where the loop is not `"predict"`.
        loop: `"train"`, `"test"` or `"predict"`.
        state: the values that this loop passes to a step.
        batch: x, y and sample weights, as the data adapter yields them.

    Returns:
        The loss to differentiate (scaled, where the optimizer scales it; None for other loops
        than `"train"`), the new state, and the logs or the predictions.
    """
    private: Any = model
    if loop == "predict":
        trainable, _ = state
        outputs, non_trainable = private.predict_step(state, batch)
        return None, (trainable, non_trainable), outputs
    training = loop == "train"
    (loss, _), new, logs = _run_forward(
        model, private.compute_loss_and_updates, state, batch, training
    )
    return (loss if training else None), new, logs


def _run_forward(
    model: keras.Model,
    compute: Callable[..., Any],
    state: Sequence[Any],
    batch: ArrayTree,
    training: bool,
) -> tuple[tuple[Any, Any], tuple[Any, ...], Any]:
    """Runs one micro-batch by `compute_loss_and_updates`, or by its gradient.

    Returns:
        The loss and the gradients (None without), the new state, and the logs.
    """
    trainable, non_trainable, *optimizer, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    result, auxiliary = compute(
        trainable,
        non_trainable,
        metrics,
        x,
        y,
        sample_weight,
        training=training,
        optimizer_variables=optimizer[0] if training else None,
    )
    # `value_and_grad` returns (loss, auxiliary), gradients; the function itself loss, auxiliary.
    (loss, auxiliary), gradients = (
        (result, auxiliary) if isinstance(result, tuple) else ((result, auxiliary), None)
    )
    unscaled_loss, y_pred, non_trainable, metrics = auxiliary
    if training:
        # A mask is an attribute of its tensor, and Keras's metrics ignore masks in training: those
        # see what `value_and_grad` has returned, which are other tensors. So must a step be whose
        # parts are differentiated later.
        y_pred = jax.lax.stop_gradient(y_pred)
    private: Any = model
    with jax.named_scope(METRICS_SCOPE):
        logs, metrics = private._update_metrics_variables(
            metrics, unscaled_loss, x, y, y_pred, sample_weight
        )
    return (loss, gradients), (trainable, non_trainable, *optimizer, metrics), logs


@jax.named_scope(METRICS_SCOPE)
def metric_logs(model: keras.Model, metric_values: Iterable[Any]) -> dict[str, Any]:
    """Returns the result of `compute_metrics` for these values of the metrics' variables."""
    with keras.StatelessScope(
        state_mapping=list(zip(model.metrics_variables, metric_values, strict=True))
    ):
        return model.get_metrics_result()
