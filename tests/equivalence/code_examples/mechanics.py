"""Losses, metrics, steps, optimizers and layers of one's own."""

from typing import Any

import jax
import keras
import numpy as np
from accumulated_by_hand import accumulate_by_hand
from keras import layers, ops

from code_examples.example import AFTER_UPDATE, Case, example, random_of
from code_examples.own_step import Steps
from code_examples.text import WORDS, TokensAndPositions, next_words


def numbers(rows: int, outputs: int = 1) -> dict[str, Any]:
    random = random_of(91)
    x = random.normal(size=(rows, 5)).astype("float32")
    return {"x": x, "y": (x[:, :outputs] + 0.1 * x[:, 1:2]).astype("float32")}


def mlp(cls: Any = keras.Sequential) -> keras.Model:
    hidden = [layers.Dense(6, "relu"), layers.Dense(6, "tanh"), layers.Dense(1)]
    return cls([keras.Input((5,)), *hidden])


def mixture_loss(y_true: Any, y_pred: Any) -> Any:
    """How unlikely a number is under a mixture of normal distributions."""
    weights, means, deviations = ops.split(y_pred, 3, axis=-1)
    deviations = ops.softplus(deviations) + 1e-2
    logs = -0.5 * ops.square((y_true - means) / deviations) - ops.log(deviations)
    return -ops.logsumexp(logs + ops.log_softmax(weights), axis=-1)


@example("Mechanics", "mixture density network")
def mixture_density() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((5,))
        hidden = layers.Dense(8, "elu")(layers.Dense(8, "elu")(inputs))
        return keras.Model(
            inputs, layers.Concatenate()([layers.Dense(4)(hidden) for _ in range(3)])
        )

    return Case(build, numbers, "adam", lambda: mixture_loss)


class Uncertain(layers.Layer):
    """Weights that are drawn anew in every call, and a loss that keeps them near a prior."""

    def __init__(self, units: int):
        super().__init__()
        self.units, self.seeds = units, keras.random.SeedGenerator(92)

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1], self.units), initializer="random_normal")
        self.spread = self.add_weight(
            shape=self.mean.shape, initializer=keras.initializers.Constant(-2.0)
        )

    def call(self, inputs: Any) -> Any:
        deviation = ops.softplus(self.spread)
        kl = ops.sum(ops.square(self.mean) + ops.square(deviation) - 1 - 2 * ops.log(deviation))
        self.add_loss(0.005 * kl)
        drawn = keras.random.normal(self.mean.shape, seed=self.seeds)
        return ops.matmul(inputs, self.mean + deviation * drawn)


@example("Mechanics", "Bayesian layers: drawn weights and an added loss")
def bayesian_layers() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((5,))
        hidden = Uncertain(4)(layers.BatchNormalization()(inputs))
        return keras.Model(inputs, layers.Dense(1)(ops.sigmoid(hidden)))

    def metrics() -> list[Any]:
        return [keras.metrics.RootMeanSquaredError()]

    return Case(build, numbers, "rmsprop", keras.losses.MeanSquaredError, metrics)


class Guided(Steps):
    """The step of the guide: `stateless_call`, `stateless_apply`, metrics of `compile`."""

    names = ("loss", "mae")

    def __init__(self):
        super().__init__()
        self.network = mlp()

    def call(self, inputs: Any) -> Any:
        return self.network(inputs)

    def losses_of(self, data: Any, outputs: Any) -> tuple[Any, ...]:
        apart = outputs - ops.sum(data, axis=1, keepdims=True)
        return ops.mean(ops.square(apart)), ops.mean(ops.abs(apart))


@example("Mechanics", "`train_step` with `stateless_call` and `stateless_apply`")
def guided_train_step() -> Case:
    return Case(Guided, numbers)


class OwnMetrics(keras.Sequential):
    """Sets its loss in `compute_loss`, and keeps metrics whose variables are its own."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.largest, self.mae = (
            keras.metrics.Mean(name="largest"),
            keras.metrics.MeanAbsoluteError(),
        )

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        self.largest.update_state(ops.max(ops.abs(y_pred)))
        self.mae.update_state(y, y_pred)
        return ops.mean(ops.square(y - y_pred)) + sum(self.losses)


@example("Mechanics", "`compute_loss` with metrics that the model owns")
def own_metrics() -> Case:
    return Case(lambda: mlp(OwnMetrics), numbers, "adam")


class Endpoint(layers.Layer):
    """Targets are an input: this layer adds the loss, and predicts."""

    def call(self, targets: Any, logits: Any) -> Any:
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.add_loss(loss(targets, logits))
        return ops.softmax(logits)


@example("Mechanics", "an endpoint layer that adds the loss, and no targets in `fit`")
def endpoint_layer() -> Case:
    def build() -> keras.Model:
        inputs, targets = keras.Input((5,), name="inputs"), keras.Input((4,), name="targets")
        return keras.Model([inputs, targets], Endpoint()(targets, layers.Dense(4)(inputs)))

    def data(rows: int) -> dict[str, Any]:
        targets = random_of(93).integers(0, 2, (rows, 4)).astype("float32")
        return {"x": {"inputs": numbers(rows)["x"], "targets": targets}}

    return Case(build, data, "adam")


class Antirectifier(layers.Layer):
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(2 * shape[-1], shape[-1]), initializer="he_normal")

    def call(self, inputs: Any) -> Any:
        inputs = inputs - ops.mean(inputs, axis=-1, keepdims=True)
        both = ops.concatenate([ops.relu(inputs), ops.relu(-inputs)], axis=-1)
        return ops.matmul(both, self.kernel)


@example("Mechanics", "a layer of its own in place of an activation")
def antirectifier() -> Case:
    def build() -> keras.Model:
        hidden = [layers.Dense(6), Antirectifier(), layers.Dense(6), Antirectifier()]
        return keras.Sequential([keras.Input((5,)), *hidden, layers.Dropout(0.5), layers.Dense(1)])

    return Case(build, numbers, "rmsprop", "mse")


class MinimalCell(layers.Layer):
    """One gate: a cell for keras.layers.RNN."""

    def __init__(self, units: int):
        super().__init__()
        self.units = self.state_size = units
        self.gate, self.candidate = layers.Dense(units, "sigmoid"), layers.Dense(units, "tanh")

    def build(self, shape: Any) -> None:
        for layer in (self.gate, self.candidate):
            layer.build((shape[0], shape[-1] + self.units))

    def call(self, inputs: Any, states: Any) -> Any:
        (state,) = states
        gate = self.gate(ops.concatenate([inputs, state], axis=-1))
        state = (1 - gate) * state + gate * self.candidate(
            ops.concatenate([inputs, gate * state], -1)
        )
        return state, [state]


@example("Mechanics", "a recurrent cell of its own")
def recurrent_cell() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((6, 3))
        hidden = layers.RNN(MinimalCell(4), return_sequences=True)(inputs)
        return keras.Model(inputs, layers.Dense(1)(layers.RNN(MinimalCell(4))(hidden)))

    def data(rows: int) -> dict[str, Any]:
        x = random_of(94).normal(size=(rows, 6, 3)).astype("float32")
        return {"x": x, "y": x.sum(axis=(1, 2))[:, None]}

    return Case(build, data, "adam", "mse")


@example("Mechanics", "grouped query attention")
def grouped_query_attention() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((6,), dtype="int32")
        hidden = TokensAndPositions(6, WORDS, 8)(inputs)
        attention = layers.GroupQueryAttention(4, num_query_heads=4, num_key_value_heads=2)
        hidden = layers.LayerNormalization()(
            hidden + attention(hidden, hidden, use_causal_mask=True)
        )
        return keras.Model(inputs, layers.Dense(WORDS)(hidden))

    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    return Case(build, next_words, "adam", loss)


@example("Mechanics", "LoRA: frozen kernels, and small ones that learn")
def low_rank_adaptation() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((6,), dtype="int32")
        hidden = layers.Embedding(WORDS, 8)(inputs)
        hidden = hidden + layers.MultiHeadAttention(2, 4)(hidden, hidden)
        model = keras.Model(inputs, layers.Dense(WORDS)(layers.Dense(8, "gelu")(hidden)))
        for layer in model._flatten_layers():
            if hasattr(layer, "enable_lora"):
                layer.enable_lora(2)
            elif layer.weights and not list(layer._layers):
                layer.trainable = False
        return model

    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    return Case(build, next_words, "adamw", loss)


@ops.custom_gradient
def rounded(values: Any) -> Any:
    """Whole numbers; gradients pass as if they were the values."""

    def grad(*args: Any, upstream: Any = None) -> Any:
        return args[0] if upstream is None else upstream

    return ops.round(values), grad


class QuantizedDense(layers.Dense):
    """Trains with the eight bits in mind with which it will be used."""

    def call(self, inputs: Any) -> Any:
        scale = ops.max(ops.abs(self.kernel), axis=0, keepdims=True) / 127
        return ops.matmul(inputs, rounded(self.kernel / scale) * scale) + self.bias


@example("Mechanics", "training with quantization in mind: a gradient of its own")
def quantization_aware() -> Case:
    def build() -> keras.Model:
        hidden = [QuantizedDense(6), layers.ReLU(), QuantizedDense(6), layers.ReLU()]
        return keras.Sequential([keras.Input((5,)), *hidden, QuantizedDense(1)])

    return Case(build, numbers, "adam", "mse")


class Centralized(keras.optimizers.RMSprop):
    """Takes the mean out of gradients before it applies them."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        if len(gradient.shape) > 1:
            axes = list(range(len(gradient.shape) - 1))
            gradient = gradient - ops.mean(gradient, axis=axes, keepdims=True)
        super().update_step(gradient, variable, learning_rate)


@example("Mechanics", "gradient centralization: an optimizer of its own")
def gradient_centralization() -> Case:
    return Case(mlp, numbers, lambda **more: Centralized(1e-3, **more), "mse")


@example("Mechanics", "clipping by the global norm, a cosine schedule with warm-up")
def clipped_and_scheduled() -> Case:
    def optimizer(epsilon: float = 0, **more: Any) -> Any:  # SGD has none
        rate = keras.optimizers.schedules.CosineDecay(
            1e-3, decay_steps=8, warmup_target=1e-2, warmup_steps=2
        )
        return keras.optimizers.SGD(rate, momentum=0.9, global_clipnorm=0.1, **more)

    return Case(mlp, numbers, optimizer, "mse", by_hand=True)


@example("Mechanics", "random Fourier features and a hinge loss")
def kernel_machine() -> Case:
    class Fourier(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(
                shape=(shape[-1], 16), initializer="random_normal", trainable=False
            )
            self.bias = self.add_weight(
                shape=(16,), initializer=keras.initializers.RandomUniform(0, 6.28), trainable=False
            )

        def call(self, inputs: Any) -> Any:
            return ops.cos(ops.matmul(inputs, self.kernel) + self.bias)

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((5,)), Fourier(), layers.Dense(3)])

    def data(rows: int) -> dict[str, Any]:
        kinds = random_of(95).integers(0, 3, rows)
        return {"x": numbers(rows)["x"], "y": np.eye(3, dtype="float32")[kinds]}

    def metrics() -> list[Any]:
        return [keras.metrics.CategoricalAccuracy(name="acc")]

    return Case(build, data, "adam", keras.losses.CategoricalHinge, metrics)


@example("Mechanics", "policy gradient: rewards as weights of the rows")
def policy_gradient() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((5,))
        common = layers.Dense(8, "relu")(inputs)
        heads = {
            "action": layers.Dense(2, "softmax", name="action")(common),
            "critic": layers.Dense(1, name="critic")(common),
        }
        return keras.Model(inputs, heads)

    def data(rows: int) -> dict[str, Any]:
        random = random_of(96)
        reward = random.normal(size=(rows,)).astype("float32")
        actions = random.integers(0, 2, rows).astype("int32")
        weights = {"action": reward, "critic": np.ones_like(reward)}
        y = {"action": actions, "critic": reward[:, None]}
        return {"x": numbers(rows)["x"], "y": y, "sample_weight": weights}

    def losses() -> Any:
        return {"action": "sparse_categorical_crossentropy", "critic": "huber"}

    return Case(build, data, "adam", losses)


class TargetNetwork(keras.Model):
    """Learns what its own slow copy says of the next state; `train_step` moves the copy."""

    def __init__(self):
        super().__init__()
        self.network, self.target = mlp(), mlp()
        self.target.trainable = False

    def call(self, inputs: Any) -> Any:
        now, then = inputs
        wanted = 0.1 * ops.sum(now, -1, keepdims=True) + 0.9 * self.target(then)
        return self.network(now) - ops.stop_gradient(wanted)

    def train_step(self, state: Any, data: Any) -> Any:
        return self.moved(super().train_step(state, data))

    def moved(self, result: Any) -> Any:
        logs, (trainable, others, optimizer, metrics) = result
        count = len(self.target.variables)
        moved = [0.9 * old + 0.1 * new for old, new in zip(others[:count], trainable, strict=True)]
        return logs, (trainable, [*moved, *others[count:]], optimizer, metrics)

    def accumulated(self, steps: int) -> "TargetNetwork":
        """Makes each batch be `steps` batches of one update, after which the copy moves once."""
        step = accumulate_by_hand(self, steps).train_step
        self.train_step = lambda *arguments: self.moved(step(*arguments))
        return self


@example("Mechanics", "deep Q-learning: `train_step` moves a target network")
def target_network() -> Case:
    def data(rows: int) -> dict[str, Any]:
        x = random_of(97).normal(size=(2, rows, 5)).astype("float32")
        return {"x": (x[0], x[1]), "y": np.zeros((rows, 1), "float32")}

    return Case(
        TargetNetwork,
        data,
        "adam",
        "huber",
        by_hand=TargetNetwork.accumulated,
        refused=AFTER_UPDATE,
    )


@example("Mechanics", "recomputed layers by `jax.checkpoint` in a layer")
def checkpointed_layer() -> Case:
    class Again(layers.Layer):
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), initializer="orthogonal")

        def call(self, inputs: Any) -> Any:
            part = jax.checkpoint(lambda x, kernel: ops.tanh(ops.matmul(x, kernel)))
            return part(inputs, ops.convert_to_tensor(self.kernel))

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((5,)), Again(), Again(), layers.Dense(1)])

    return Case(build, numbers, "adam", "mse")
