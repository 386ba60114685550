"""The benchmarks' models, each twice: stock Keras, and handwritten in JAX without Keras.

The handwritten ones compute the same: same layers, mean loss, Adam with Keras's defaults, and the
running mean of the loss that Keras reports.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-7


@dataclass(frozen=True)
class Case:
    """One model at one size."""

    name: str
    rows: int
    batch: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    build: Callable[[], keras.Model]
    forward: Callable[[list[Any], Any], Any]
    loss: str = "mse"

    @property
    def steps(self) -> int:
        """Steps of one epoch."""
        return self.rows // self.batch

    @functools.cache  # noqa: B019 - four cases, for the length of one script
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns x and y."""
        random = np.random.default_rng(0)
        x = random.standard_normal((self.rows, *self.inputs), dtype=np.float32)
        if self.loss == "mse":
            return x, random.standard_normal((self.rows, *self.outputs), dtype=np.float32)
        return x, random.integers(0, self.outputs[0], self.rows, dtype=np.int32)

    def model(self, **compile_options: Any) -> keras.Model:
        """Returns the compiled Keras model."""
        keras.utils.set_random_seed(0)
        model = self.build()
        loss: Any = self.loss
        if loss != "mse":
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss, **compile_options)
        return model


def handwritten_loss(case: Case) -> Callable[[list[Any], Any], Any]:
    """Returns `(weights, batch) -> mean loss` in plain JAX."""

    def loss_of(weights: list[Any], batch: Any) -> Any:
        x, y = batch
        predicted = case.forward(weights, x)
        if case.loss == "mse":
            return jnp.mean((predicted - y) ** 2)
        log = jax.nn.log_softmax(predicted)
        return -jnp.mean(jnp.take_along_axis(log, y[:, None], axis=1))

    return loss_of


def handwritten_step(case: Case) -> Callable[[Any, Any], Any]:
    """Returns `(state, batch) -> state` in plain JAX; state from `handwritten_state`."""

    def step(state: Any, batch: Any) -> Any:
        weights, first, second, count, total, seen = state
        loss, gradients = jax.value_and_grad(handwritten_loss(case))(weights, batch)
        weights, first, second, count = adam(weights, first, second, count, gradients)
        rows = batch[0].shape[0]
        return weights, first, second, count, total + loss * rows, seen + rows

    return step


def adam(weights: Any, first: Any, second: Any, count: Any, gradients: Any) -> Any:
    """Returns weights, both moments and the number of updates after one more."""
    count = count + 1
    t = count.astype(jnp.float32)
    alpha = RATE * jnp.sqrt(1 - BETA2**t) / (1 - BETA1**t)
    first = [m + (g - m) * (1 - BETA1) for m, g in zip(first, gradients, strict=True)]
    second = [v + (g * g - v) * (1 - BETA2) for v, g in zip(second, gradients, strict=True)]
    weights = [
        w - m * alpha / (jnp.sqrt(v) + EPSILON)
        for w, m, v in zip(weights, first, second, strict=True)
    ]
    return weights, first, second, count


def handwritten_state(case: Case, model: keras.Model | None = None) -> Any:
    """Returns the state of a handwritten model with the Keras model's initial weights."""
    weights = [jnp.array(v.value) for v in (model or case.model()).trainable_variables]
    zeros = [jnp.zeros_like(w) for w in weights]
    again = [jnp.zeros_like(w) for w in weights]
    return weights, zeros, again, jnp.int32(0), jnp.float32(0), jnp.float32(0)


def stacked(case: Case, order: np.ndarray | None = None) -> Any:
    """Returns the epoch's batches as device arrays `[steps, batch, ...]`, in `order` if given."""
    rows = case.steps * case.batch

    def stack(array: np.ndarray) -> jax.Array:
        chosen = array[:rows] if order is None else array[order[:rows]]
        return jnp.asarray(chosen.reshape(case.steps, case.batch, *array.shape[1:]))

    return tuple(map(stack, case.data()))


def epoch_by_scan(case: Case) -> Callable[[Any, Any], Any]:
    """One dispatch per epoch."""
    step = handwritten_step(case)

    def epoch(state: Any, batches: Any) -> Any:
        return lax.scan(lambda s, b: (step(s, b), None), state, batches)[0]

    return jax.jit(epoch, donate_argnums=0)


def epoch_by_unrolled(case: Case, size: int) -> Callable[[Any, Any], Any]:
    """One dispatch per `size` steps, which the program runs one after the other."""
    step = handwritten_step(case)

    def some(state: Any, batches: Any, start: Any) -> Any:
        for index in range(size):
            batch = jax.tree.map(
                lambda a, i=index: lax.dynamic_index_in_dim(a, start + i, 0, False), batches
            )
            state = step(state, batch)
        return state

    compiled = jax.jit(some, donate_argnums=0)

    def epoch(state: Any, batches: Any) -> Any:
        for start in range(0, case.steps, size):
            state = compiled(state, batches, np.int32(start))
        return state

    return epoch


def _dense(x: Any, weights: list[Any]) -> Any:
    return x @ weights[0] + weights[1]


def _tiny() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([keras.Input((8,)), layers.Dense(8, "relu"), layers.Dense(1)])


def _tiny_forward(w: list[Any], x: Any) -> Any:
    return _dense(jax.nn.relu(_dense(x, w[0:2])), w[2:4])


def _mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(128, "relu"),
            layers.Dense(128, "relu"),
            layers.Dense(10),
        ]
    )


def _mlp_forward(w: list[Any], x: Any) -> Any:
    return _dense(jax.nn.relu(_dense(jax.nn.relu(_dense(x, w[0:2])), w[2:4])), w[4:6])


def _lstm() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([keras.Input((16, 8)), layers.LSTM(16), layers.Dense(1)])


def _lstm_forward(w: list[Any], x: Any) -> Any:
    kernel, recurrent, bias = w[0:3]

    def cell(carry: Any, x_t: Any) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x_t @ kernel + h @ recurrent + bias, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zeros = jnp.zeros((x.shape[0], recurrent.shape[0]))
    (h, _), _ = lax.scan(cell, (zeros, zeros), jnp.swapaxes(x, 0, 1))
    return _dense(h, w[3:5])


def _convnet() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((16, 16, 1)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def _convnet_forward(w: list[Any], x: Any) -> Any:
    def conv(x: Any, weights: list[Any]) -> Any:
        y = lax.conv_general_dilated(
            x, weights[0], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jax.nn.relu(y + weights[1])

    x = conv(x, w[0:2])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return _dense(jnp.mean(conv(x, w[2:4]), axis=(1, 2)), w[4:6])


def _transformer() -> keras.Model:
    layers = keras.layers
    x = inputs = keras.Input((32, 64))
    y = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(y, y)])
    y = layers.Dense(256, "gelu")(layers.LayerNormalization()(x))
    x = layers.GlobalAveragePooling1D()(layers.Add()([x, layers.Dense(64)(y)]))
    return keras.Model(inputs, layers.Dense(10)(x))


def _transformer_forward(w: list[Any], x: Any) -> Any:
    def norm(x: Any, weights: list[Any]) -> Any:
        centred = x - jnp.mean(x, -1, keepdims=True)
        variance = jnp.mean(centred**2, -1, keepdims=True)
        return centred * lax.rsqrt(variance + 1e-3) * weights[0] + weights[1]

    y = norm(x, w[0:2])
    query, key, value = (jnp.einsum("btd,dhk->bthk", y, w[i]) + w[i + 1] for i in (2, 4, 6))
    y = jax.nn.dot_product_attention(query, key, value)
    x = x + jnp.einsum("bthk,hkd->btd", y, w[8]) + w[9]
    y = jax.nn.gelu(_dense(norm(x, w[10:12]), w[12:14]), approximate=False)
    return _dense(jnp.mean(x + _dense(y, w[14:16]), axis=1), w[16:18])


CASES = (
    Case("tiny", 64_000, 8, (8,), (1,), _tiny, _tiny_forward),
    Case("mlp", 32_000, 32, (64,), (10,), _mlp, _mlp_forward, "crossentropy"),
    Case("lstm", 16_000, 16, (16, 8), (1,), _lstm, _lstm_forward),
    Case("convnet", 12_800, 32, (16, 16, 1), (10,), _convnet, _convnet_forward, "crossentropy"),
)
# One pre-norm block of width 64 with 4 heads, on 32 positions.
TRANSFORMER = Case(
    *("transformer", 6_400, 16, (32, 64), (10,)), _transformer, _transformer_forward, "crossentropy"
)


def chosen(name: str, small: bool) -> list[Case]:
    """Returns the cases whose names contain `name`; if `small`, with 64 batches each."""
    cases = [case for case in CASES if name in case.name]
    return [replace(case, rows=case.batch * 64) for case in cases] if small else cases
