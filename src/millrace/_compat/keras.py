"""Private Keras. Checked on keras 3.13.0, 3.14.0 and 3.15.1.

`EpochIterator`   `fit`, `evaluate` and `predict` build one of these per call and draw executions
                  from it; nothing public decides what they draw.
`get_data_adapter`, `is_array_adapter`   what Keras makes of `x`, in the order it would feed it.
`is_endless`      whether a data set says of itself that it never ends.
`layer_of`        the layer that a variable belongs to.
`all_layers`, `layers_without_jit`   nested ones included.
`compute_gradient_step`   loss, gradients and metrics of one micro-batch without the update, which
                  `train_step` only has together with it.
`compute_forward` the same without the gradients, for all three loops.
"""

import abc
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np
from keras.src.backend.jax import trainer as _trainer
from keras.src.trainers.data_adapters import array_data_adapter, get_data_adapter

from millrace._compat.patches import unpatched
from millrace._compat.versions import keras_is

__all__ = [
    "EpochIterator",
    "all_layers",
    "compute_forward",
    "compute_gradient_step",
    "epoch_order",
    "get_data_adapter",
    "is_array_adapter",
    "is_endless",
    "layer_of",
    "layers_without_jit",
    "metric_logs",
]

_StockEpochIterator = unpatched(_trainer.JAXEpochIterator)


class EpochIterator(_StockEpochIterator, abc.ABC):
    """Keras's epoch iterator, with what it gives out left to a subclass.

    Keras goes through `(begin, end, executions' iterator)` once per epoch. With `steps_per_epoch`,
    one pass through the data goes on over several epochs; without, each epoch is a pass. An epoch
    in which the data runs out ends the pass, too: `catch_stop_iteration` drops the iterator.
    """

    @abc.abstractmethod
    def executions(self) -> Iterator[tuple[int, int, Any]]:
        """Yields an epoch's first and last step of each execution, and what it draws from."""

    def _enumerate_iterator(self) -> Iterator[tuple[int, int, Any]]:  # type: ignore[override]
        self.data_adapter.on_epoch_begin()
        if self.steps_per_epoch is None or self._current_iterator is None:
            self.end_pass()
        yield from self.executions()
        self.data_adapter.on_epoch_end()

    def host_batches(self) -> Iterator[Any]:
        """Returns the data adapter's batches of this pass, in host memory."""
        if self._current_iterator is None:
            self._current_iterator = iter(self.data_adapter.get_jax_iterator())
        return self._current_iterator

    def end_pass(self) -> None:
        """Lets the next batch be the first of the data again."""
        self._current_iterator = None
        self._steps_seen = 0

    @property
    def steps_in_pass(self) -> int:
        """Steps that this pass has given out so far; `executions` counts them up."""
        return self._steps_seen

    @steps_in_pass.setter
    def steps_in_pass(self, steps: int) -> None:
        self._steps_seen = steps

    @property
    def pass_length(self) -> int | None:
        """Batches in one pass through the data; None until an unknown number has been found."""
        return self._num_batches

    @pass_length.setter
    def pass_length(self, batches: int) -> None:
        self._num_batches = batches

    def warn_of_missing_data(self) -> None:
        """Warns, in Keras's words, that an epoch had fewer batches than it was to have."""
        self._interrupted_warning()


def epoch_order(data: Any, rows: int, shuffle: bool | str) -> np.ndarray:
    """Returns the row numbers of one epoch in the order in which Keras would feed them.

    Keras shuffles row numbers, so numbers are what we let it feed. One batch of all of them draws
    the same permutation as many batches, and is a hundred times faster; where only batches are
    shuffled, many it is.

    Args:
        data: the adapter of the arrays that are fed. From Keras 3.16 on, it has the number that
            the order of its next epoch is drawn from; before, NumPy's generator decides.
        rows: how many the arrays have.
        shuffle: as `fit` takes it.
    """
    adapter: Any = get_data_adapter(
        x=np.arange(rows, dtype=np.int32),
        batch_size=data.batch_size if shuffle == "batch" else rows,
        shuffle=shuffle,  # type: ignore[arg-type]  # Keras takes "batch", too
    )
    if keras_is("3.16"):
        adapter._epoch = data._epoch
    return np.concatenate(
        [np.asarray(jax.tree.leaves(batch)[0]) for batch in adapter.get_jax_iterator()]
    )


def is_array_adapter(adapter: Any) -> bool:
    """Whether Keras slices batches out of arrays in memory."""
    return isinstance(adapter, array_data_adapter.ArrayDataAdapter)


def is_endless(adapter: Any) -> bool:
    """Whether the data set behind `adapter` says that it never ends.

    tf.data reports it as a cardinality of -1, a PyDataset by having no number of batches.
    """
    dataset = getattr(adapter, "_dataset", None)
    cardinality = getattr(dataset, "cardinality", None)
    if callable(cardinality):
        return int(cardinality()) == -1  # type: ignore[call-overload]
    return hasattr(adapter, "py_dataset") and adapter.num_batches is None


def compute_gradient_step(
    model: Any, state: Any, batch: Any, value_and_grad: Callable[[Any], Any] | None = None
) -> tuple[Any, Any, Any, Any]:
    """Runs one micro-batch forward and backward.

    Args:
        model: a compiled Keras model.
        state: trainable, non-trainable, optimizer and metric values, in the model's order.
        batch: what the data adapter yields: x, y and sample weights.
        value_and_grad: differentiates a function of `(loss, auxiliary)`; None is JAX's own.

    Returns:
        Gradients in the order of the trainable variables (of the scaled loss, where the optimizer
        scales it), new non-trainable values, new metric values, logs.
    """
    differentiate = value_and_grad or functools.partial(jax.value_and_grad, has_aux=True)
    compute = differentiate(model.compute_loss_and_updates)
    (_, gradients), (_, non_trainable, _, metrics), logs = _run_forward(
        model, compute, state, batch, training=True
    )
    return gradients, non_trainable, metrics, logs


def compute_forward(model: Any, loop: str, state: Any, batch: Any) -> tuple[Any, Any, Any]:
    """Runs one micro-batch forward.

    Args:
        model: a Keras model, compiled where the loop is not `"predict"`.
        loop: `"train"`, `"test"` or `"predict"`.
        state: the values that this loop passes to a step.
        batch: what the data adapter yields: x, y and sample weights.

    Returns:
        The loss to differentiate (scaled, where the optimizer scales it; None for other loops
        than `"train"`), the new state, and the logs or the predictions.
    """
    if loop == "predict":
        outputs, non_trainable = model.predict_step(state, batch)
        return None, (state[0], non_trainable), outputs
    training = loop == "train"
    (loss, _), new, logs = _run_forward(
        model, model.compute_loss_and_updates, state, batch, training
    )
    return (loss if training else None), new, logs


def _run_forward(
    model: Any, compute: Any, state: Any, batch: Any, training: bool
) -> tuple[tuple[Any, Any], tuple[Any, ...], Any]:
    """Runs one micro-batch by `compute_loss_and_updates`, or by its gradient.

    Returns:
        The loss and the gradients (None without), the new state, and the logs.
    """
    trainable, non_trainable, *optimizer, metrics = state
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
    result, rest = compute(
        trainable,
        non_trainable,
        metrics,
        x,
        y,
        sample_weight,
        training=training,
        optimizer_variables=optimizer[0] if training else None,
    )
    # `value_and_grad` returns (loss, rest), gradients; the function itself loss, rest.
    (loss, rest), gradients = (
        (result, rest) if isinstance(result, tuple) else ((result, rest), None)
    )
    unscaled_loss, y_pred, non_trainable, metrics = rest
    logs, metrics = model._update_metrics_variables(
        metrics, unscaled_loss, x, y, y_pred, sample_weight
    )
    return (loss, gradients), (trainable, non_trainable, *optimizer, metrics), logs


def all_layers(model: Any) -> list[Any]:
    """Returns the layers of a model, nested ones and itself included."""
    return list(model._flatten_layers())


def layers_without_jit(model: Any) -> list[str]:
    """Returns the names of layers that say of themselves that they cannot be compiled."""
    return [x.name for x in all_layers(model) if not getattr(x, "supports_jit", True)]


def layer_of(model: Any, variable: Any) -> str | None:
    """Returns the name of the innermost layer that has `variable`, None if it is the model's own.

    A variable's path does not always tell: a seed generator's has no layer in it.
    """
    owners = [x for x in model._flatten_layers() if any(v is variable for v in x.variables)]
    inner = [x for x in owners if x is not model]
    return min(inner, key=lambda x: len(x.variables)).name if inner else None


def metric_logs(model: Any, metric_values: Any) -> dict[str, Any]:
    """Returns what `compute_metrics` returns once the metrics have these values."""
    with keras.StatelessScope(
        state_mapping=list(zip(model.metrics_variables, metric_values, strict=True))
    ):
        return model.get_metrics_result()
