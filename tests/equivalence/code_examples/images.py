"""Images in and images, texts, volumes, points or distances out."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of
from code_examples.vision import SIZE, EncodedPatches, Patches, classes, pictures


def to_image(rows: int, channels: int = 3, size: int = SIZE) -> dict[str, Any]:
    return {"x": pictures(rows), "y": pictures(rows, size, channels, seed=21)}


@example("Images", "U-Net for segmentation")
def unet() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
        before = hidden = layers.Activation("relu")(layers.BatchNormalization()(hidden))
        hidden = layers.SeparableConv2D(6, 3, padding="same")(layers.Activation("relu")(hidden))
        hidden = layers.BatchNormalization()(hidden)
        hidden = layers.MaxPooling2D(3, strides=2, padding="same")(hidden)
        hidden = layers.add([hidden, layers.Conv2D(6, 1, strides=2, padding="same")(before)])
        for filters in (6, 4):
            up = layers.UpSampling2D(2)(hidden)
            hidden = layers.Conv2DTranspose(filters, 3, padding="same")(layers.ReLU()(hidden))
            hidden = layers.UpSampling2D(2)(layers.BatchNormalization()(hidden))
            hidden = layers.add([hidden, layers.Conv2D(filters, 1, padding="same")(up)])
        return keras.Model(
            inputs, layers.Conv2D(3, 3, activation="softmax", padding="same")(hidden)
        )

    def data(rows: int) -> dict[str, Any]:
        y = random_of(22).integers(0, 3, (rows, SIZE, SIZE, 1)).astype("uint8")
        return {"x": pictures(rows), "y": y}

    return Case(build, data, "rmsprop", "sparse_categorical_crossentropy")


@example("Images", "DeepLabV3+: dilated convolutions and bilinear resizing")
def dilated_segmentation() -> Case:
    def block(inputs: Any, size: int = 3, dilation: int = 1) -> Any:
        hidden = layers.Conv2D(
            4, size, dilation_rate=dilation, padding="same", use_bias=False,
            kernel_initializer="he_normal",
        )(inputs)  # fmt: skip
        return ops.nn.relu(layers.BatchNormalization()(hidden))

    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        low = block(layers.Conv2D(4, 3, strides=2, padding="same")(inputs))
        pooled = block(layers.AveragePooling2D(4)(low), 1)
        pooled = layers.UpSampling2D(4, interpolation="bilinear")(pooled)
        hidden = block(layers.Concatenate()([pooled, block(low, 1), block(low, 3, 2)]), 1)
        hidden = layers.UpSampling2D(2, interpolation="bilinear")(hidden)
        return keras.Model(inputs, layers.Conv2D(3, 1, padding="same")(hidden))

    def data(rows: int) -> dict[str, Any]:
        y = random_of(22).integers(0, 3, (rows, SIZE, SIZE)).astype("int32")
        return {"x": pictures(rows), "y": y}

    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    return Case(build, data, "adam", loss, ["accuracy"])


class ToSpace(layers.Layer):
    """Spreads channels over pixels."""

    def __init__(self, factor: int):
        super().__init__()
        self.factor = factor

    def call(self, inputs: Any) -> Any:
        rows, height, width, channels = ops.shape(inputs)
        factor, left = self.factor, channels // self.factor**2
        hidden = ops.reshape(inputs, (rows, height, width, factor, factor, left))
        hidden = ops.transpose(hidden, (0, 1, 3, 2, 4, 5))
        return ops.reshape(hidden, (rows, height * factor, width * factor, left))


@example("Images", "super-resolution by sub-pixels")
def super_resolution() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((None, None, 1))
        hidden = inputs
        for filters in (6, 6, 4, 4):
            hidden = layers.Conv2D(
                filters, 3, activation="relu", padding="same", kernel_initializer="orthogonal"
            )(hidden)
        return keras.Model(inputs, ToSpace(2)(hidden))

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows, channels=1), "y": pictures(rows, 2 * SIZE, 1, seed=23)}

    return Case(build, data, "adam", keras.losses.MeanSquaredError)


@example("Images", "autoencoder that takes noise away")
def denoising_autoencoder() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 1))
        hidden = inputs
        for _ in range(2):
            hidden = layers.Conv2D(4, 3, activation="relu", padding="same")(hidden)
            hidden = layers.MaxPooling2D(2, padding="same")(hidden)
        for _ in range(2):
            hidden = layers.Conv2DTranspose(4, 3, strides=2, activation="relu", padding="same")(
                hidden
            )
        return keras.Model(
            inputs, layers.Conv2D(1, 3, activation="sigmoid", padding="same")(hidden)
        )

    def data(rows: int) -> dict[str, Any]:
        clean = pictures(rows, channels=1)
        noise = random_of(24).normal(0, 0.4, clean.shape).astype("float32")
        return {"x": np.clip(clean + noise, 0, 1), "y": clean}

    return Case(build, data, "adam", "binary_crossentropy")


class LightCurves(keras.Model):
    """Brightens pictures step by step; its losses know no better pictures."""

    def __init__(self):
        super().__init__()
        self.first = layers.Conv2D(4, 3, activation="relu", padding="same")
        self.curves = layers.Conv2D(6, 3, activation="tanh", padding="same")

    def call(self, inputs: Any) -> Any:
        curves = self.curves(self.first(inputs))
        for curve in ops.split(curves, 2, axis=-1):
            inputs = inputs + curve * (ops.square(inputs) - inputs)
        return ops.concatenate([inputs, curves], axis=-1)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        image, curves = y_pred[..., :3], y_pred[..., 3:]
        red, green, blue = ops.split(ops.mean(image, axis=(1, 2), keepdims=True), 3, axis=3)
        colors = ops.sqrt((red - green) ** 4 + (green - blue) ** 4 + (blue - red) ** 4 + 1e-6)
        gray = layers.AveragePooling2D(4)(ops.mean(image, 3, keepdims=True))
        exposed = ops.mean(ops.square(gray - 0.6))
        smooth = ops.mean(ops.square(curves[:, 1:] - curves[:, :-1]))
        return 5 * ops.mean(colors) + 10 * exposed + 20 * smooth


@example("Images", "low light: losses that need no targets")
def low_light() -> Case:
    return Case(LightCurves, lambda rows: {"x": pictures(rows) * 0.3}, "adam", None)


def embedder() -> keras.Model:
    inputs = keras.Input((SIZE, SIZE, 1))
    hidden = layers.Conv2D(4, 3, activation="tanh")(layers.BatchNormalization()(inputs))
    hidden = layers.Flatten()(layers.AveragePooling2D(2)(hidden))
    return keras.Model(inputs, layers.Dense(6, "tanh")(layers.BatchNormalization()(hidden)))


def contrastive(y_true: Any, y_pred: Any) -> Any:
    apart = ops.square(ops.maximum(1 - y_pred, 0))
    return ops.mean((1 - y_true) * ops.square(y_pred) + y_true * apart)


@example("Images", "siamese network: one embedding for both pictures, a contrastive loss")
def siamese_contrastive() -> Case:
    def distance(pair: Any) -> Any:
        squares = ops.sum(ops.square(pair[0] - pair[1]), axis=1, keepdims=True)
        return ops.sqrt(ops.maximum(squares, keras.backend.epsilon()))

    def build() -> keras.Model:
        left, right = keras.Input((SIZE, SIZE, 1)), keras.Input((SIZE, SIZE, 1))
        embed = embedder()
        apart = layers.Lambda(distance, output_shape=(1,))([embed(left), embed(right)])
        apart = layers.BatchNormalization()(apart)
        return keras.Model([left, right], layers.Dense(1, "sigmoid")(apart))

    def data(rows: int) -> dict[str, Any]:
        pair = [pictures(rows, channels=1), pictures(rows, channels=1, seed=25)]
        return {"x": pair, "y": classes(rows, 2)[:, None].astype("float32")}

    return Case(build, data, "rmsprop", lambda: contrastive, ["accuracy"])


class Student(keras.Model):
    """Learns from labels, and from what a frozen teacher says."""

    def __init__(self, student: keras.Model, teacher: keras.Model):
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher.trainable = False

    def call(self, inputs: Any) -> Any:
        return self.student(inputs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        told = ops.softmax(self.teacher(x, training=False) / 2)
        said = ops.softmax(y_pred / 2)
        distilled = ops.mean(keras.losses.kl_divergence(told, said)) * 4
        labelled = super().compute_loss(x, y, y_pred, sample_weight, training)
        return 0.1 * labelled + 0.9 * distilled


@example("Images", "knowledge distillation: a frozen teacher in compute_loss")
def distillation() -> Case:
    def network(filters: int) -> keras.Model:
        hidden = [
            layers.Conv2D(filters, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(2, strides=1, padding="same"),
            layers.Flatten(),
            layers.Dense(3),
        ]
        return keras.Sequential([keras.Input((SIZE, SIZE, 1)), *hidden])

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows, channels=1), "y": classes(rows)}

    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    metrics = [keras.metrics.SparseCategoricalAccuracy]
    return Case(
        lambda: Student(network(3), network(6)), data, "adam", loss, lambda: [m() for m in metrics]
    )


class MaskedAutoencoder(keras.Model):
    """Sees some patches, at random, and draws the others."""

    def __init__(self, seen: int = 6, patches: int = 16, width: int = 8):
        super().__init__()
        self.seen, self.number = seen, patches
        self.seeds = keras.random.SeedGenerator(27)
        self.patches, self.encoded = Patches(2), EncodedPatches(patches, width)
        self.encoder = layers.MultiHeadAttention(2, 4)
        self.norm, self.hidden = layers.LayerNormalization(), layers.Dense(12)
        self.token = self.add_weight(shape=(1, 1, width), initializer="random_normal")
        self.decoder = layers.MultiHeadAttention(2, 4)

    def call(self, images: Any, training: bool = False) -> Any:
        patches = self.patches(images)
        rows = ops.shape(patches)[0]
        order = ops.argsort(keras.random.uniform((rows, self.number), seed=self.seeds), axis=-1)
        seen, back = order[:, : self.seen, None], ops.argsort(order, axis=-1)[..., None]
        hidden = ops.take_along_axis(self.encoded(patches), seen, axis=1)
        hidden = self.norm(hidden + self.encoder(hidden, hidden))
        rest = ops.broadcast_to(self.token, (rows, self.number - self.seen, self.token.shape[-1]))
        hidden = ops.take_along_axis(ops.concatenate([hidden, rest], axis=1), back, axis=1)
        drawn = self.hidden(hidden + self.decoder(hidden, hidden))
        hides = ops.cast(back >= self.seen, "float32")
        self.add_loss(ops.sum(hides * ops.square(drawn - patches)) / ops.sum(hides))
        return drawn


@example("Images", "masked autoencoder: random patches, a loss that the model adds itself")
def masked_autoencoder() -> Case:
    return Case(MaskedAutoencoder, lambda rows: {"x": pictures(rows)}, "adamw", None)


class Captions(keras.Model):
    """Describes pictures in words: an encoder, a decoder, and a masked loss with a metric."""

    def __init__(self, words: int = 9, width: int = 8):
        super().__init__()
        self.features = keras.Sequential(
            [layers.Conv2D(width, 4, strides=4), layers.Reshape((4, width))]
        )
        self.encoder = layers.Dense(width, "relu")
        self.embedding = layers.Embedding(words, width, mask_zero=True)
        self.own, self.cross = (layers.MultiHeadAttention(2, 4, dropout=0.1) for _ in range(2))
        self.norm, self.scores = layers.LayerNormalization(), layers.Dense(words)
        self.tracker = keras.metrics.Mean(name="hits")

    def call(self, inputs: Any, training: bool = False) -> Any:
        picture, words = inputs
        picture = self.encoder(self.features(picture))
        hidden = self.embedding(words)
        own = self.own(hidden, hidden, use_causal_mask=True, training=training)
        hidden = self.norm(hidden + own)
        hidden = hidden + self.cross(hidden, picture, training=training)
        return self.scores(hidden)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)
        counts = ops.cast(y != 0, loss.dtype)
        hits = ops.cast(ops.argmax(y_pred, axis=2) == ops.cast(y, "int32"), loss.dtype)
        self.tracker.update_state(ops.sum(hits * counts) / ops.sum(counts))
        return ops.sum(loss * counts) / ops.sum(counts)


@example("Images", "captions of pictures")
def image_captions() -> Case:
    def data(rows: int) -> dict[str, Any]:
        random = random_of(28)
        words = random.integers(1, 9, (rows, 6))
        words[np.arange(6) >= random.integers(3, 7, (rows, 1))] = 0
        words = words.astype("int32")
        return {"x": [pictures(rows), words[:, :-1]], "y": words[:, 1:]}

    return Case(Captions, data, "adam", None)
