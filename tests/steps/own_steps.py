"""Models with a `train_step(state, data)` of their own, of the kinds that users write.

Each is a small network of three layers, without random numbers or statistics of a batch, so that
an update of several micro-batches is that of one big batch.
"""

from typing import Any

import jax
import keras
import numpy as np
from keras import layers, ops


class Network(keras.Model):
    """A few layers; the steps of its subclasses differ."""

    metrics_of_compile: tuple[str, ...] = ()
    widths: tuple[int, ...] = (8, 8)
    repeats: int = 1  # of each row of the data

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [
            layers.Dense(width, "tanh", kernel_regularizer="l2") for width in self.widths
        ]
        self.last = layers.Dense(1)

    def build(self, shape: Any) -> None:
        for layer in (*self.hidden, self.last):
            layer.build(shape)
            shape = (None, layer.units)
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.hidden:
            x = layer(x)
        return self.last(x)

    def error(self, trainable: Any, others: Any, data: Any) -> Any:
        """Mean of the squares of errors."""
        x, y = data
        guesses, _ = self.stateless_call(trainable, others, x, training=True)
        return ops.mean(ops.square(guesses - y))


class OfTheGuide(Network):
    """As in Keras's guide for JAX: losses of layers, metrics that `compile` has made."""

    metrics_of_compile = ("mae",)

    def loss_of(self, trainable: Any, others: Any, x: Any, y: Any) -> Any:
        guesses, others, losses = self.stateless_call(
            trainable, others, x, training=True, return_losses=True
        )
        loss = ops.mean(keras.losses.mean_squared_error(y, guesses)) + sum(losses)
        return loss, (guesses, others)

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        x, y = data
        differentiated = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, (guesses, others)), gradients = differentiated(trainable, others, x, y)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, gradients, trainable)
        logs, new = {}, []
        for metric in self.metrics:
            values = metrics[len(new) : len(new) + len(metric.variables)]
            given = (loss,) if metric.name == "loss" else (y, guesses)
            values = metric.stateless_update_state(values, *given)
            logs[metric.name] = metric.stateless_result(values)
            new += values
        return logs, (trainable, others, optimizer, new)


class Simple(Network):
    """A gradient, what is done with it, and the optimizer."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        return jax.value_and_grad(self.error)(trainable, others, data)

    def applied(self, optimizer: Any, gradients: Any, trainable: Any) -> Any:
        return self.optimizer.stateless_apply(optimizer, gradients, trainable)

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        loss, gradients = self.gradients(trainable, others, data)
        trainable, optimizer = self.applied(optimizer, gradients, trainable)
        return {"error": loss}, (trainable, others, optimizer, metrics)


class Clipped(Simple):
    """Clips its gradients, which is not linear: the mean has to come first."""

    def applied(self, optimizer: Any, gradients: Any, trainable: Any) -> Any:
        norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
        clipped = [gradient * ops.minimum(1.0, 0.1 / norm) for gradient in gradients]
        return super().applied(optimizer, clipped, trainable)


class FirstLayerFrozen(Simple):
    """Differentiates with regard to a dict of some weights, and hands zeros on for the others."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        def error(learned: Any) -> Any:
            return self.error([*trainable[:2], *learned["last"]], others, data)

        loss, gradients = jax.value_and_grad(error)({"last": trainable[2:]})
        return loss, [*map(ops.zeros_like, trainable[:2]), *gradients["last"]]


class InScope(Simple):
    """Applies gradients to variables, in a scope."""

    def applied(self, optimizer: Any, gradients: Any, trainable: Any) -> Any:
        variables, slots = self.trainable_variables, self.optimizer.variables
        values = [*zip(variables, trainable, strict=True), *zip(slots, optimizer, strict=True)]
        with keras.StatelessScope(state_mapping=values) as scope:
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return tuple([*map(scope.get_current_value, kind)] for kind in (variables, slots))


class Forwarding(Network):
    """Hands its arguments on to Keras's own step."""

    def train_step(self, *args: Any) -> Any:
        return super().train_step(*args)


class Adversarial(Simple):
    """Moves its inputs along their gradient first: a gradient that is part of the forward."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        x, y = data
        slopes = jax.grad(
            lambda x: ops.sum(ops.square(self.stateless_call(trainable, others, x)[0]))
        )
        return super().gradients(trainable, others, (x + 0.1 * ops.sign(slopes(x)), y))


class PenalizedSlopes(Simple):
    """A gradient of a gradient."""

    def error(self, trainable: Any, others: Any, data: Any) -> Any:
        def guess(x: Any) -> Any:
            return ops.sum(self.stateless_call(trainable, others, x)[0])

        slopes = jax.grad(guess)(data[0])
        return super().error(trainable, others, data) + 0.1 * ops.mean(ops.square(slopes))


class RowByRow(Simple):
    """Clips the gradient of each row, as differentially private training does."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        def of_row(x: Any, y: Any) -> Any:
            return jax.value_and_grad(self.error)(trainable, others, (x[None], y[None]))

        losses, gradients = jax.vmap(of_row)(*data)
        squares = sum(ops.sum(ops.reshape(ops.square(g), (len(g), -1)), -1) for g in gradients)
        scales = ops.minimum(1.0, 0.5 / ops.sqrt(squares))
        return ops.mean(losses), [ops.mean(jax.vmap(ops.multiply)(g, scales), 0) for g in gradients]


class TwoLosses(Simple):
    """Two gradients of the same weights; the second counts where they agree."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        def absolute(weights: Any) -> Any:
            guesses, _ = self.stateless_call(weights, others, data[0], training=True)
            return ops.mean(ops.abs(guesses - data[1]))

        loss, first = super().gradients(trainable, others, data)
        second = jax.grad(absolute)(trainable)
        agree = [
            ops.cast(ops.sum(a * b) > 0, "float32") for a, b in zip(first, second, strict=True)
        ]
        return loss, [a + b * c for a, b, c in zip(first, second, agree, strict=True)]


class SharpnessAware(Simple):
    """The gradient where a first gradient leads uphill."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        loss, first = super().gradients(trainable, others, data)
        norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in first))
        uphill = [w + 0.05 * g / norm for w, g in zip(trainable, first, strict=True)]
        return loss, super().gradients(uphill, others, data)[1]


class Lookahead(Simple):
    """Keeps a slow copy of its weights, moved after each update."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = [self.add_weight(shape=(8,), trainable=False, name=f"slow_{k}") for k in (0, 1)]

    def train_step(self, state: Any, data: Any) -> Any:
        logs, (trainable, others, optimizer, metrics) = super().train_step(state, data)
        moved = [0.9 * old + 0.1 * trainable[1] for old in others]
        return logs, (trainable, moved, optimizer, metrics)


class InTurn(Simple):
    """The last layer learns first, the others then at its new weights."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        logs = {}
        for part in (slice(4, 6), slice(0, 4)):
            loss, gradients = self.gradients(trainable, others, data)
            chosen = [ops.zeros_like(gradient) for gradient in gradients]
            chosen[part] = gradients[part]
            trainable, optimizer = self.applied(optimizer, chosen, trainable)
            logs[f"error_{part.start}"] = loss
        return logs, (trainable, others, optimizer, metrics)


class ShowsNorm(Simple):
    """Logs the norm of its gradients, and keeps their mean as a metric."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = keras.metrics.Mean(name="norm")

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        loss, gradients = self.gradients(trainable, others, data)
        norm = ops.sqrt(sum(ops.sum(ops.square(gradient)) for gradient in gradients))
        index = len(metrics) - len(self.norm.variables)
        values = self.norm.stateless_update_state(metrics[index:], norm)
        trainable, optimizer = self.applied(optimizer, gradients, trainable)
        logs = {"error": loss, "norm": self.norm.stateless_result(values)}
        return logs, (trainable, others, optimizer, [*metrics[:index], *values])


class Scaled(Simple):
    """Scales its loss for float16, as the optimizer says."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state

        def scaled(weights: Any) -> Any:
            loss = self.error(weights, others, data)
            values = [*zip(self.optimizer.variables, optimizer, strict=True)]
            with keras.StatelessScope(state_mapping=values):
                return self.optimizer.scale_loss(loss), loss

        gradients, loss = jax.grad(scaled, has_aux=True)(trainable)
        trainable, optimizer = self.applied(optimizer, gradients, trainable)
        return {"error": loss}, (trainable, others, optimizer, metrics)


class SignsAlone(Simple):
    """Moves weights by the signs of their gradients, without an optimizer."""

    def applied(self, optimizer: Any, gradients: Any, trainable: Any) -> Any:
        pairs = zip(trainable, gradients, strict=True)
        return [w - 0.01 * ops.sign(gradient) for w, gradient in pairs], optimizer


class Decayed(Simple):
    """Adds weights to their gradients."""

    def applied(self, optimizer: Any, gradients: Any, trainable: Any) -> Any:
        decayed = [g + 0.1 * w for w, g in zip(trainable, gradients, strict=True)]
        return super().applied(optimizer, decayed, trainable)


class TwoArguments(Simple):
    """Differentiates with regard to two arguments at once."""

    def gradients(self, trainable: Any, others: Any, data: Any) -> Any:
        def error(first: Any, rest: Any) -> Any:
            return self.error([*first, *rest], others, data)

        differentiated = jax.value_and_grad(error, argnums=(0, 1))
        loss, (first, rest) = differentiated(trainable[:3], trainable[3:])
        return loss, [*first, *rest]


class Compiled(Simple):
    """Differentiates a function that is compiled by itself."""

    def error(self, trainable: Any, others: Any, data: Any) -> Any:
        return jax.jit(super().error)(trainable, others, data)


class Checkpointed(Simple):
    """Differentiates a function whose forward JAX runs again."""

    def error(self, trainable: Any, others: Any, data: Any) -> Any:
        return jax.checkpoint(super().error)(trainable, others, data)


class WarmedUp(Simple):
    """Weighs its loss by the updates that the optimizer counts."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, others, optimizer, metrics = state
        variables = self.optimizer.variables
        index = next(k for k, v in enumerate(variables) if v is self.optimizer.iterations)
        share = (1 + ops.cast(optimizer[index], "float32")) / 8

        def error(weights: Any) -> Any:
            return share * self.error(weights, others, data)

        loss, gradients = jax.value_and_grad(error)(trainable)
        trainable, optimizer = self.applied(optimizer, gradients, trainable)
        return {"error": loss}, (trainable, others, optimizer, metrics)


KINDS = (
    OfTheGuide,
    Clipped,
    FirstLayerFrozen,
    InScope,
    Forwarding,
    Adversarial,
    PenalizedSlopes,
    RowByRow,
    TwoLosses,
    SharpnessAware,
    Lookahead,
    InTurn,
    ShowsNorm,
    Scaled,
    SignsAlone,
    Decayed,
    TwoArguments,
    Compiled,
    Checkpointed,
    WarmedUp,
)
# What stages cannot have, and a part of the error.
NOT_CUT = {
    RowByRow: "computes its gradients by itself",
    TwoLosses: "takes several gradients",
    SharpnessAware: "takes several gradients",
    InTurn: "takes several gradients",
    Lookahead: "follows from its gradients",
    ShowsNorm: "follow from gradients",
    Compiled: "layers of several stages are called inside one loop, one jax.jit",
    Checkpointed: "layers of several stages are called inside one loop, one jax.jit",
    # The whole model, twice.
    Adversarial: "data only goes to later stages",
    PenalizedSlopes: "data only goes to later stages",
}
ROWS, BATCH = 32, 16


def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    return tuple(random.normal(size=(ROWS, width)).astype("float32") for width in (6, 1))


def made(kind: type[Network]) -> Network:
    """A compiled model, from the same weights for each kind."""
    keras.utils.set_random_seed(7)
    model = kind()
    model.build((None, 6))
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3)
    if kind is Scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=8.0)
    model.compile(optimizer, "mse", metrics=list(kind.metrics_of_compile))
    return model
