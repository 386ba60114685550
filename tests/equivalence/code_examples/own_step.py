"""Models with a `train_step(state, data)` of their own."""

from typing import Any, ClassVar

import jax
import keras


class Steps(keras.Model):
    """A step over several losses: the first is differentiated, each has a metric.

    `losses_of(data, outputs)` returns one loss for each of `names`.
    """

    names: ClassVar[tuple[str, ...]] = ("loss",)

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.trackers = [keras.metrics.Mean(name=name) for name in self.names]

    @property
    def metrics(self) -> list[Any]:
        return self.trackers

    def losses_of(self, data: Any, outputs: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        (data, *_) = data if isinstance(data, tuple) else (data,)

        def loss_of(trainable: Any, others: Any) -> Any:
            call = {"training": True} if self._call_has_training_arg else {}
            outputs, others = self.stateless_call(trainable, others, data, **call)
            losses = self.losses_of(data, outputs)
            return losses[0], (losses, others)

        (_, (losses, others)), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            trainable, others
        )
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, metrics = self.tracked(metrics, losses)
        return logs, (trainable, others, optimizer, metrics)

    def tracked(self, metrics: Any, losses: Any) -> Any:
        """Returns logs, and the values of the metrics after these losses."""
        logs, new = {}, []
        for tracker, loss in zip(self.trackers, losses, strict=True):
            values = metrics[len(new) : len(new) + len(tracker.variables)]
            values = tracker.stateless_update_state(values, loss)
            logs[tracker.name] = tracker.stateless_result(values)
            new += values
        return logs, new


class Pair(keras.optimizers.Optimizer):
    """Two optimizers: the first for some of the variables, the second for the others."""

    def __init__(self, first: Any, second: Any, count: int):
        super().__init__(learning_rate=0.0)
        self.parts, self.count = (first, second), count

    def build(self, variables: Any) -> None:
        super().build(variables)
        for part, own in zip(self.parts, self.halves(variables), strict=True):
            part.build(own)

    def halves(self, values: Any) -> Any:
        return values[: self.count], values[self.count :]

    @property
    def variables(self) -> Any:
        return [*super().variables, *self.parts[0].variables, *self.parts[1].variables]

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        halves = zip(self.parts, self.halves(grads), self.halves(variables), strict=True)
        for part, gradients, own in halves:
            part.apply(gradients, own)
        self._iterations.assign_add(1)
