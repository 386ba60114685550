"""Images: classification, by convolutions and by patches."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of

SIZE = 8
CLASSES = 3


def pictures(rows: int, size: int = SIZE, channels: int = 3, seed: int = 11) -> np.ndarray:
    return random_of(seed).random(size=(rows, size, size, channels), dtype="float32")


def classes(rows: int, number: int = CLASSES) -> np.ndarray:
    return random_of(12).integers(0, number, size=(rows,)).astype("int32")


def with_class(rows: int) -> dict[str, Any]:
    return {"x": pictures(rows), "y": classes(rows)}


def logits() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@example("Vision", "convnet for digits")
def digits_convnet() -> Case:
    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((10, 10, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Conv2D(6, 3, activation="relu"),
                layers.MaxPooling2D(2),
                layers.Flatten(),
                layers.Dropout(0.5),
                layers.Dense(CLASSES, "softmax"),
            ]
        )

    def data(rows: int) -> dict[str, Any]:
        y = np.eye(CLASSES, dtype="float32")[classes(rows)]
        return {"x": pictures(rows, 10, 1), "y": y}

    return Case(build, data, "adam", "categorical_crossentropy", ["accuracy"])


@example("Vision", "classification from scratch: augmentation in the model, residual blocks")
def augmented_xception() -> Case:
    def block(inputs: Any, filters: int) -> Any:
        hidden = layers.SeparableConv2D(filters, 3, padding="same")(layers.ReLU()(inputs))
        hidden = layers.BatchNormalization()(hidden)
        hidden = layers.MaxPooling2D(3, strides=2, padding="same")(hidden)
        return layers.add([hidden, layers.Conv2D(filters, 1, strides=2)(inputs)])

    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = layers.RandomFlip("horizontal")(inputs)
        hidden = layers.RandomCrop(6, 6)(layers.RandomRotation(0.1)(hidden))
        hidden = layers.Rescaling(2.0, offset=-1)(hidden)
        hidden = layers.Conv2D(4, 3, padding="same", use_bias=False)(hidden)
        hidden = block(layers.ReLU()(layers.BatchNormalization()(hidden)), 6)
        hidden = layers.Dropout(0.25)(layers.GlobalAveragePooling2D()(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES)(hidden))

    eager = dict.fromkeys(("accumulated", "cut"), "do not support compilation")
    return Case(build, with_class, "adam", logits, ["acc"], refused=eager)


class Patches(layers.Layer):
    """Cuts images into a row of flat patches."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def call(self, images: Any) -> Any:
        patches = ops.image.extract_patches(images, self.size)
        rows, height, width, channels = ops.shape(patches)
        return ops.reshape(patches, (rows, height * width, channels))


class EncodedPatches(layers.Layer):
    """Projects patches and adds what their positions are."""

    def __init__(self, number: int, width: int):
        super().__init__()
        self.number = number
        self.projection = layers.Dense(width)
        self.positions = layers.Embedding(number, width)

    def call(self, patches: Any) -> Any:
        positions = ops.expand_dims(ops.arange(self.number), 0)
        return self.projection(patches) + self.positions(positions)


@example("Vision", "vision transformer")
def vision_transformer() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = EncodedPatches(16, 8)(Patches(2)(inputs))
        for _ in range(2):
            normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
            attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(normed, normed)
            hidden = layers.Add()([attended, hidden])
            normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
            for width in (12, 8):
                normed = layers.Dense(width, activation=keras.activations.gelu)(normed)
                normed = layers.Dropout(0.1)(normed)
            hidden = layers.Add()([normed, hidden])
        hidden = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.Dropout(0.5)(hidden)))

    def optimizer(**more: Any) -> Any:
        return keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4, **more)

    def metrics() -> list[Any]:
        return [keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2")]

    return Case(build, with_class, optimizer, logits, metrics)


class Mixer(layers.Layer):
    """Mixes patches, then channels, each by two dense layers."""

    def __init__(self, patches: int, width: int):
        super().__init__()
        self.patches = keras.Sequential([layers.Dense(patches, "gelu"), layers.Dense(patches)])
        self.channels = keras.Sequential([layers.Dense(width, "gelu"), layers.Dense(width)])
        self.norm = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs: Any) -> Any:
        mixed = self.patches(ops.transpose(self.norm(inputs), (0, 2, 1)))
        hidden = ops.transpose(mixed, (0, 2, 1)) + inputs
        return hidden + self.channels(self.norm(hidden))


@example("Vision", "MLP-Mixer: one normalization called twice")
def mlp_mixer() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = EncodedPatches(4, 8)(Patches(4)(inputs))
        hidden = keras.Sequential([Mixer(4, 8), Mixer(4, 8)])(hidden)
        hidden = layers.Dropout(0.2)(layers.GlobalAveragePooling1D()(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES)(hidden))

    return Case(build, with_class, "adamw", logits, ["acc"])


class SpatialGate(layers.Layer):
    """Half of the channels gates the other half."""

    def build(self, shape: Any) -> None:
        self.norm = layers.LayerNormalization(epsilon=1e-6)
        self.projection = layers.Dense(shape[1], bias_initializer="ones")

    def call(self, inputs: Any) -> Any:
        kept, gate = ops.split(inputs, 2, axis=-1)
        gate = ops.transpose(self.projection(ops.transpose(self.norm(gate), (0, 2, 1))), (0, 2, 1))
        return kept * gate


@example("Vision", "gMLP: layers that are made in build()")
def gated_mlp() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = layers.Dense(6)(Patches(4)(inputs))
        gated = SpatialGate()(layers.Dense(12, "gelu")(layers.LayerNormalization()(hidden)))
        hidden = hidden + layers.Dense(6)(gated)
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalMaxPooling1D()(hidden)))

    return Case(build, with_class, "adam", logits, ["acc"])


@example("Vision", "ConvMixer")
def conv_mixer() -> Case:
    def normed(inputs: Any) -> Any:
        return layers.BatchNormalization()(layers.Activation("gelu")(inputs))

    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = normed(layers.Conv2D(6, 2, strides=2)(layers.Rescaling(2.0)(inputs)))
        for _ in range(2):
            deep = normed(layers.DepthwiseConv2D(3, padding="same")(hidden))
            hidden = normed(layers.Conv2D(6, 1)(layers.Add()([deep, hidden])))
        hidden = layers.GlobalAvgPool2D()(hidden)
        return keras.Model(inputs, layers.Dense(CLASSES, "softmax")(hidden))

    return Case(build, with_class, "adamw", "sparse_categorical_crossentropy", ["accuracy"])


class StochasticDepth(layers.Layer):
    """Leaves a branch out for some of the rows, in training."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.seeds = keras.random.SeedGenerator(17)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        shape = (ops.shape(inputs)[0],) + (1,) * (len(inputs.shape) - 1)
        keeps = ops.floor(1 - self.rate + keras.random.uniform(shape, seed=self.seeds))
        return inputs / (1 - self.rate) * keeps


class SequencePooling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        weights = ops.transpose(ops.softmax(self.attention(inputs), axis=1), (0, 2, 1))
        return ops.squeeze(ops.matmul(weights, inputs), -2)


@example("Vision", "compact convolutional transformer with stochastic depth")
def compact_transformer() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = layers.RandomFlip("horizontal")(layers.Rescaling(2.0)(inputs))
        hidden = layers.Conv2D(8, 3, padding="same", activation="relu", use_bias=False)(hidden)
        hidden = layers.Reshape((-1, 8))(layers.MaxPooling2D(2)(hidden))
        for rate in (0.0, 0.3):
            normed = layers.LayerNormalization(epsilon=1e-5)(hidden)
            attended = layers.MultiHeadAttention(2, 4, dropout=0.1)(normed, normed)
            hidden = layers.Add()([StochasticDepth(rate)(attended), hidden])
            ahead = layers.Dense(8, "gelu")(layers.LayerNormalization(epsilon=1e-5)(hidden))
            hidden = layers.Add()([StochasticDepth(rate)(ahead), hidden])
        return keras.Model(inputs, layers.Dense(CLASSES)(SequencePooling()(hidden)))

    def loss() -> Any:
        return keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows), "y": np.eye(CLASSES, dtype="float32")[classes(rows)]}

    return Case(build, data, "adamw", loss, ["accuracy"])


class WindowAttention(layers.Layer):
    """Attention within windows of an image, which may be shifted, with a bias by distance."""

    def __init__(self, width: int, window: int, shift: int):
        super().__init__()
        self.width, self.window, self.shift = width, window, shift
        self.qkv, self.projection = layers.Dense(3 * width), layers.Dense(width)
        self.bias = self.add_weight(shape=((2 * window - 1) ** 2,), initializer="zeros")
        place = np.stack(np.meshgrid(range(window), range(window), indexing="ij")).reshape(2, -1)
        apart = place[:, :, None] - place[:, None, :] + window - 1
        self.index = apart[0] * (2 * window - 1) + apart[1]

    def call(self, inputs: Any) -> Any:
        rows, size = ops.shape(inputs)[0], inputs.shape[1]
        parts, window = size // self.window, self.window
        hidden = ops.roll(inputs, (-self.shift, -self.shift), axis=(1, 2))
        hidden = ops.reshape(hidden, (rows, parts, window, parts, window, self.width))
        hidden = ops.transpose(hidden, (0, 1, 3, 2, 4, 5))
        query, key, value = ops.split(
            self.qkv(ops.reshape(hidden, (-1, window * window, self.width))), 3, axis=-1
        )
        scores = ops.matmul(query, ops.transpose(key, (0, 2, 1))) / self.width**0.5
        scores = scores + ops.take(self.bias, self.index)
        hidden = self.projection(ops.matmul(ops.softmax(scores), value))
        hidden = ops.reshape(hidden, (rows, parts, parts, window, window, self.width))
        hidden = ops.reshape(ops.transpose(hidden, (0, 1, 3, 2, 4, 5)), (rows, size, size, -1))
        return ops.roll(hidden, (self.shift, self.shift), axis=(1, 2))


@example("Vision", "Swin transformer: attention in shifted windows")
def shifted_windows() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = layers.Conv2D(6, 2, strides=2)(inputs)
        for shift in (0, 1):
            normed = layers.LayerNormalization(epsilon=1e-5)(hidden)
            hidden = hidden + WindowAttention(6, 2, shift)(normed)
            hidden = hidden + layers.Dense(6, "gelu")(layers.LayerNormalization()(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(hidden)))

    def optimizer(**more: Any) -> Any:
        return keras.optimizers.AdamW(1e-3, weight_decay=1e-4, clipnorm=1.0, **more)

    return Case(build, with_class, optimizer, logits, ["accuracy"], by_hand=True)


class Involution(layers.Layer):
    """A convolution whose kernel comes from the pixel in its middle."""

    def __init__(self, channels: int, size: int = 3, reduction: int = 2):
        super().__init__()
        self.channels, self.size = channels, size
        self.kernel_of = keras.Sequential(
            [
                layers.Conv2D(channels // reduction, 1),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2D(size * size, 1),
            ]
        )

    def call(self, inputs: Any) -> Any:
        rows, height, width = ops.shape(inputs)[:3]
        area = self.size * self.size
        kernel = ops.reshape(self.kernel_of(inputs), (rows, height, width, area, 1))
        patches = ops.image.extract_patches(inputs, self.size, strides=1, padding="same")
        patches = ops.reshape(patches, (rows, height, width, area, self.channels))
        return ops.sum(kernel * patches, axis=3)


@example("Vision", "involution")
def involution() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 4))
        hidden = layers.MaxPooling2D(2)(layers.ReLU()(Involution(4)(inputs)))
        hidden = layers.Flatten()(layers.ReLU()(Involution(4)(hidden)))
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.Dense(6, "relu")(hidden)))

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows, channels=4), "y": classes(rows)}

    return Case(build, data, "adam", logits, ["accuracy"])


@example("Vision", "perceiver: a latent array that one layer refines again and again")
def perceiver() -> Case:
    class Latents(layers.Layer):
        def __init__(self):
            super().__init__()
            self.latents = self.add_weight(shape=(4, 8), initializer="random_normal")
            self.cross = layers.MultiHeadAttention(2, 4, dropout=0.1)
            self.own = layers.MultiHeadAttention(2, 4)
            self.norm = layers.LayerNormalization()

        def call(self, inputs: Any, training: bool = False) -> Any:
            hidden = ops.broadcast_to(self.latents, (ops.shape(inputs)[0], 4, 8))
            for _ in range(2):
                hidden = hidden + self.cross(hidden, inputs, training=training)
                hidden = self.norm(hidden + self.own(hidden, hidden))
            return hidden

    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = layers.GlobalAveragePooling1D()(
            Latents()(EncodedPatches(4, 8)(Patches(4)(inputs)))
        )
        return keras.Model(inputs, layers.Dense(CLASSES)(layers.Dropout(0.2)(hidden)))

    return Case(build, with_class, "adamw", logits, ["acc"])


@example("Vision", "where an object is: boxes from a vision transformer")
def boxes_of_objects() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((SIZE, SIZE, 3))
        hidden = EncodedPatches(4, 8)(Patches(4)(inputs))
        normed = layers.LayerNormalization(epsilon=1e-6)(hidden)
        hidden = hidden + layers.MultiHeadAttention(2, 4, dropout=0.1)(normed, normed)
        hidden = layers.Dropout(0.3)(layers.Flatten()(hidden))
        return keras.Model(inputs, layers.Dense(4)(layers.Dense(8, "gelu")(hidden)))

    def data(rows: int) -> dict[str, Any]:
        return {"x": pictures(rows), "y": random_of(13).random((rows, 4), dtype="float32")}

    return Case(build, data, "adamw", keras.losses.MeanSquaredError)
