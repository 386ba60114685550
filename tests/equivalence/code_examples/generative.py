"""Generators that learn by losses: VAEs, flows, pixels one after the other, codes, diffusion."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of
from code_examples.own_step import Steps

SIZE = 4


def pictures(rows: int, size: int = SIZE, channels: int = 1) -> np.ndarray:
    return random_of(71).random((rows, size, size, channels), dtype="float32")


def only_pictures(rows: int) -> dict[str, Any]:
    return {"x": pictures(rows)}


class Sampling(layers.Layer):
    """Draws from normal distributions, and adds how far they are from the standard one."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(72)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        kl = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        self.add_loss(-0.05 * ops.mean(ops.sum(kl, axis=1)))
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        return mean + ops.exp(0.5 * log_variance) * noise


def encoded(inputs: Any) -> tuple[Any, Any]:
    hidden = layers.Conv2D(4, 3, strides=2, activation="relu", padding="same")(inputs)
    hidden = layers.Dense(6, "relu")(layers.Flatten()(hidden))
    return layers.Dense(2)(hidden), layers.Dense(2)(hidden)


def decoder() -> keras.Sequential:
    return keras.Sequential(
        [
            layers.Dense(2 * 2 * 4, "relu"),
            layers.Reshape((2, 2, 4)),
            layers.Conv2DTranspose(4, 3, strides=2, activation="relu", padding="same"),
            layers.Conv2DTranspose(1, 3, activation="sigmoid", padding="same"),
        ]
    )


@example("Generators", "VAE whose sampling layer adds its loss")
def variational_autoencoder() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 1))
        return keras.Model(inputs, decoder()(Sampling()(encoded(inputs))))

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows), "y": pictures(rows)}

    return Case(build, data, "adam", keras.losses.BinaryCrossentropy)


class VariationalSteps(Steps):
    """Three losses with a metric each, in a step of its own."""

    names = ("total_loss", "reconstruction_loss", "kl_loss")

    def __init__(self):
        super().__init__()
        inputs = keras.Input((SIZE, SIZE, 1))
        self.encoder, self.decoder = keras.Model(inputs, encoded(inputs)), decoder()
        self.seeds = keras.random.SeedGenerator(73)

    def call(self, inputs: Any, training: bool = False) -> Any:
        mean, log_variance = self.encoder(inputs)
        noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
        drawn = self.decoder(mean + ops.exp(0.5 * log_variance) * noise)
        return mean, log_variance, drawn

    def losses_of(self, data: Any, outputs: Any) -> tuple[Any, ...]:
        mean, log_variance, drawn = outputs
        each = ops.sum(keras.losses.binary_crossentropy(data, drawn), axis=(1, 2))
        kl = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        drawn_loss, kl_loss = ops.mean(each), ops.mean(ops.sum(-0.5 * kl, axis=1))
        return drawn_loss + kl_loss, drawn_loss, kl_loss


@example("Generators", "VAE with its own `train_step(state, data)` and three metrics")
def variational_train_step() -> Case:
    return Case(VariationalSteps, only_pictures)


class Coupling(layers.Layer):
    """Half of the numbers scales and moves the other half; returns what that does to volumes."""

    def __init__(self, keeps: int):
        super().__init__()
        self.mask = np.eye(2, dtype="float32")[keeps]
        self.scale = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(2, "tanh")])
        self.move = keras.Sequential([layers.Dense(6, "relu"), layers.Dense(2)])

    def call(self, inputs: Any) -> Any:
        kept = inputs * self.mask
        scale, move = (part(kept) * (1 - self.mask) for part in (self.scale, self.move))
        hidden = (1 - self.mask) * (inputs - move) * ops.exp(-scale) + kept
        return hidden, -ops.sum(scale, axis=1)


class Flow(Steps):
    names = ("loss",)

    def __init__(self):
        super().__init__()
        self.couplings = [Coupling(number % 2) for number in range(4)]

    def call(self, inputs: Any) -> Any:
        total = 0.0
        for coupling in self.couplings:
            inputs, logs = coupling(inputs)
            total = total + logs
        return inputs, total

    def losses_of(self, data: Any, outputs: Any) -> tuple[Any, ...]:
        hidden, logs = outputs
        likely = -0.5 * ops.sum(ops.square(hidden), axis=1) - np.log(2 * np.pi)
        return (-ops.mean(likely + logs),)


@example("Generators", "RealNVP: couplings, and the likelihood as the loss of a step of its own")
def real_nvp() -> Case:
    def data(rows: int) -> dict[str, Any]:
        return {"x": random_of(74).normal(size=(rows, 2)).astype("float32")}

    return Case(Flow, data)


class PixelConvolution(layers.Layer):
    """Sees the pixels before it only."""

    def __init__(self, kind: str, **arguments: Any):
        super().__init__()
        self.kind, self.convolution = kind, layers.Conv2D(**arguments)

    def build(self, shape: Any) -> None:
        self.convolution.build(shape)
        mask = np.zeros(self.convolution.kernel.shape, "float32")
        middle = mask.shape[0] // 2
        mask[:middle] = mask[middle, : middle + (self.kind == "B")] = 1
        self.mask = mask

    def call(self, inputs: Any) -> Any:
        self.convolution.kernel.assign(self.convolution.kernel * self.mask)
        return self.convolution(inputs)


@example("Generators", "PixelCNN: a layer that assigns its masked kernel in every call")
def pixel_cnn() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((6, 6, 1))
        arguments = {"filters": 4, "activation": "relu", "padding": "same"}
        hidden = PixelConvolution("A", kernel_size=5, **arguments)(inputs)
        before = layers.Conv2D(2, 1, activation="relu")(hidden)
        before = PixelConvolution("B", kernel_size=3, **{**arguments, "filters": 2})(before)
        hidden = layers.add([hidden, layers.Conv2D(4, 1, activation="relu")(before)])
        return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(hidden))

    def data(rows: int) -> dict[str, Any]:
        x = np.round(pictures(rows, 6))
        return {"x": x, "y": x}

    return Case(build, data, "adam", "binary_crossentropy")


class Codes(layers.Layer):
    """Replaces vectors by the nearest of its codes; gradients pass straight through."""

    def __init__(self, number: int = 5, width: int = 3):
        super().__init__()
        self.width = width
        self.codes = self.add_weight(shape=(width, number), initializer="random_uniform")

    def call(self, inputs: Any) -> Any:
        flat = ops.reshape(inputs, (-1, self.width))
        apart = ops.sum(flat**2, axis=1, keepdims=True) + ops.sum(self.codes**2, axis=0)
        nearest = ops.argmin(apart - 2 * ops.matmul(flat, self.codes), axis=1)
        coded = ops.matmul(ops.one_hot(nearest, self.codes.shape[1]), ops.transpose(self.codes))
        coded = ops.reshape(coded, ops.shape(inputs))
        commitment = ops.mean((ops.stop_gradient(coded) - inputs) ** 2)
        self.add_loss(0.25 * commitment + ops.mean((coded - ops.stop_gradient(inputs)) ** 2))
        return inputs + ops.stop_gradient(coded - inputs)


@example("Generators", "VQ-VAE: codes, straight-through gradients, an added loss")
def codes_autoencoder() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 1))
        hidden = layers.Conv2D(4, 3, strides=2, activation="relu", padding="same")(inputs)
        hidden = Codes()(layers.Conv2D(3, 1, padding="same")(hidden))
        hidden = layers.Conv2DTranspose(4, 3, strides=2, activation="relu", padding="same")(hidden)
        return keras.Model(inputs, layers.Conv2DTranspose(1, 3, padding="same")(hidden))

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows), "y": pictures(rows)}

    return Case(build, data, "adam", "mse")


class Denoiser(keras.Model):
    """Normalizes pictures, adds noise at random times, and says which noise it was."""

    def __init__(self):
        super().__init__()
        self.normalizer = layers.Rescaling(3.0, offset=-1.5)
        self.seeds = keras.random.SeedGenerator(75)
        self.times = layers.Dense(4, "swish")
        self.down = layers.Conv2D(4, 3, strides=2, padding="same", activation="swish")
        self.norm = layers.BatchNormalization(center=False, scale=False)
        self.up = layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="swish")
        self.noise = layers.Conv2D(1, 1, kernel_initializer="zeros")

    def call(self, inputs: Any, training: bool = False) -> Any:
        images = self.normalizer(inputs)
        rows = ops.shape(images)[0]
        noise = keras.random.normal(ops.shape(images), seed=self.seeds)
        angle = keras.random.uniform((rows, 1, 1, 1), 0.1, 1.5, seed=self.seeds)
        noisy = ops.cos(angle) * images + ops.sin(angle) * noise
        wave = ops.concatenate([ops.sin(4.0 * angle), ops.cos(4.0 * angle)], axis=-1)
        hidden = ops.concatenate([noisy, self.times(wave) + 0 * noisy], axis=-1)
        hidden = self.norm(self.down(hidden), training=training)
        hidden = ops.concatenate([self.up(hidden), noisy], axis=-1)
        return ops.stack([noise, self.noise(hidden)])

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return ops.mean(ops.abs(y_pred[0] - y_pred[1]))


@example("Generators", "denoising diffusion; the optimizer averages the weights")
def diffusion() -> Case:
    def optimizer(**more: Any) -> Any:
        return keras.optimizers.AdamW(1e-3, use_ema=True, ema_momentum=0.9, **more)

    return Case(Denoiser, only_pictures, optimizer, by_hand=True)
