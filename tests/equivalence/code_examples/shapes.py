"""Volumes, films, points, rays, bags of pictures, and pictures of texts."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of
from code_examples.vision import SIZE, classes, pictures


@example("Shapes", "next frames of a film with ConvLSTM2D")
def film_conv_lstm() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((None, 6, 6, 1))
        hidden = inputs
        for size in (3, 1):
            hidden = layers.ConvLSTM2D(
                3, size, padding="same", return_sequences=True, activation="relu"
            )(hidden)
            hidden = layers.BatchNormalization()(hidden)
        outputs = layers.Conv3D(1, 3, activation="sigmoid", padding="same")(hidden)
        return keras.Model(inputs, outputs)

    def data(rows: int) -> dict[str, Any]:
        film = random_of(31).random((rows, 4, 6, 6, 1), dtype="float32")
        return {"x": film[:, :-1], "y": film[:, 1:]}

    return Case(build, data, "adam", keras.losses.BinaryCrossentropy)


@example("Shapes", "3D convolutions over scans")
def volumes() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((6, 6, 6, 1))
        hidden = layers.MaxPool3D(2)(layers.Conv3D(4, 3, padding="same", activation="relu")(inputs))
        hidden = layers.GlobalAveragePooling3D()(layers.BatchNormalization()(hidden))
        hidden = layers.Dropout(0.3)(layers.Dense(6, "relu")(hidden))
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))

    def data(rows: int) -> dict[str, Any]:
        x = random_of(32).random((rows, 6, 6, 6, 1), dtype="float32")
        return {"x": x, "y": classes(rows, 2)[:, None].astype("float32")}

    def optimizer(**more: Any) -> Any:
        rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 1000, 0.96, staircase=True)
        return keras.optimizers.Adam(rate, **more)

    return Case(build, data, optimizer, "binary_crossentropy", ["acc"], by_hand=True)


@example("Shapes", "films as features of a frozen network, with a mask, into GRUs")
def film_gru() -> Case:
    def build() -> keras.Model:
        frames, mask = keras.Input((5, 7)), keras.Input((5,), dtype="bool")
        hidden = layers.GRU(6, return_sequences=True)(frames, mask=mask)
        hidden = layers.Dropout(0.4)(layers.GRU(4)(hidden))
        return keras.Model([frames, mask], layers.Dense(3, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        random = random_of(33)
        frames = random.normal(size=(rows, 5, 7)).astype("float32")
        mask = np.arange(5) < random.integers(2, 6, (rows, 1))
        return {"x": [frames, mask], "y": classes(rows)}

    return Case(build, data, "adam", "sparse_categorical_crossentropy", ["accuracy"])


class Orthogonal(keras.regularizers.Regularizer):
    """Keeps a transformation of points near a rotation."""

    def __init__(self, size: int):
        self.size = size

    def __call__(self, x: Any) -> Any:
        x = ops.reshape(x, (-1, self.size, self.size))
        products = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.sum(0.001 * ops.square(products - ops.eye(self.size)))


@example("Shapes", "PointNet: transformations that an activity regularizer keeps orthogonal")
def point_net() -> Case:
    def normed(inputs: Any) -> Any:
        hidden = layers.BatchNormalization(momentum=0.0)(inputs)
        return layers.Activation("relu")(hidden)

    def transformed(inputs: Any, size: int) -> Any:
        hidden = layers.GlobalMaxPooling1D()(normed(layers.Conv1D(6, 1)(inputs)))
        matrix = layers.Dense(
            size * size,
            kernel_initializer="zeros",
            bias_initializer=keras.initializers.Constant(np.eye(size).flatten()),
            activity_regularizer=Orthogonal(size),
        )(hidden)
        return layers.Dot(axes=(2, 1))([inputs, layers.Reshape((size, size))(matrix)])

    def build() -> keras.Model:
        inputs = keras.Input((10, 3))
        hidden = normed(layers.Conv1D(4, 1)(transformed(inputs, 3)))
        hidden = normed(layers.Conv1D(6, 1)(transformed(hidden, 4)))
        hidden = layers.Dropout(0.3)(layers.GlobalMaxPooling1D()(hidden))
        return keras.Model(inputs, layers.Dense(3, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        x = random_of(34).normal(size=(rows, 10, 3)).astype("float32")
        return {"x": x, "y": classes(rows)}

    def metrics() -> list[str]:
        return ["sparse_categorical_accuracy"]

    return Case(build, data, "adam", "sparse_categorical_crossentropy", metrics)


class Rays(keras.Model):
    """Colors of rays, added up along them from what a network says of each point."""

    def __init__(self, points: int = 5):
        super().__init__()
        self.points = points
        self.hidden = [layers.Dense(8, "relu") for _ in range(3)]
        self.colors = layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        start, direction = inputs[..., None, :3], inputs[..., None, 3:]
        depth = ops.linspace(1.0, 2.0, self.points)
        place = start + direction * depth[:, None]
        waves = [wave(2.0**i * place) for i in range(2) for wave in (ops.sin, ops.cos)]
        hidden = ops.concatenate([place, *waves], axis=-1)
        for number, layer in enumerate(self.hidden):
            before, hidden = hidden, layer(hidden)
            if number == 1:
                hidden = ops.concatenate([hidden, before], axis=-1)
        colors = self.colors(hidden)
        clear = ops.exp(-ops.relu(colors[..., 3]) / self.points)
        through = ops.cumprod(clear + 1e-10, axis=-1)
        weights = (1 - clear) * ops.concatenate(
            [ops.ones_like(through[..., :1]), through[..., :-1]], -1
        )
        return ops.sum(weights[..., None] * ops.sigmoid(colors[..., :3]), axis=-2)


@example("Shapes", "NeRF: rays through a scene")
def neural_rays() -> Case:
    def data(rows: int) -> dict[str, Any]:
        random = random_of(35)
        return {
            "x": random.normal(size=(rows, 6)).astype("float32"),
            "y": random.random((rows, 3), dtype="float32"),
        }

    return Case(Rays, data, "adam", "mse", ["mae"])


class BagAttention(layers.Layer):
    """What each picture of a bag counts for, by gated attention."""

    def __init__(self, width: int = 5):
        super().__init__()
        self.value, self.gate = layers.Dense(width, "tanh"), layers.Dense(width, "sigmoid")
        self.score = layers.Dense(1, use_bias=False, kernel_regularizer="l2")

    def call(self, inputs: Any) -> Any:
        scores = [self.score(self.value(each) * self.gate(each)) for each in inputs]
        return [
            ops.squeeze(w, 0) for w in ops.split(ops.softmax(ops.stack(scores), 0), len(scores))
        ]


@example("Shapes", "bags of pictures: multiple instances with attention")
def bags_of_pictures() -> Case:
    def build() -> keras.Model:
        inputs = [keras.Input((6, 6)) for _ in range(3)]
        first, second = layers.Dense(8, "relu"), layers.Dense(6, "relu")
        embeddings = [second(first(layers.Flatten()(each))) for each in inputs]
        weights = BagAttention()(embeddings)
        weighted = [layers.multiply([w, e]) for w, e in zip(weights, embeddings, strict=True)]
        return keras.Model(inputs, layers.Dense(2, "softmax")(layers.concatenate(weighted)))

    def data(rows: int) -> dict[str, Any]:
        bag = [pictures(rows, 6, 1, seed)[..., 0] for seed in (36, 37, 38)]
        return {"x": bag, "y": classes(rows, 2)}

    return Case(build, data, "adam", "sparse_categorical_crossentropy", ["accuracy"])


class TextLoss(layers.Layer):
    """Adds the CTC loss of its inputs, and passes the predictions on."""

    def call(self, text: Any, scores: Any) -> Any:
        rows = ops.shape(text)[0]
        lengths = ops.full((rows,), text.shape[1]), ops.full((rows,), scores.shape[1])
        self.add_loss(ops.mean(ops.nn.ctc_loss(text, scores, *lengths, mask_index=4)))
        return scores


@example("Shapes", "texts in pictures: the targets are an input, a layer adds the CTC loss")
def captcha() -> Case:
    def build() -> keras.Model:
        picture = keras.Input((SIZE, SIZE, 1), name="image")
        text = keras.Input((3,), dtype="int32", name="label")
        hidden = layers.Conv2D(
            4, 3, activation="relu", kernel_initializer="he_normal", padding="same"
        )(picture)
        hidden = layers.Reshape((SIZE, 4 * SIZE // 2))(layers.MaxPooling2D((1, 2))(hidden))
        hidden = layers.Dropout(0.2)(layers.Dense(6, "relu")(hidden))
        lstm = layers.LSTM(4, return_sequences=True, dropout=0.25)
        hidden = layers.Bidirectional(lstm)(hidden)
        scores = TextLoss()(text, layers.Dense(5)(hidden))
        return keras.Model([picture, text], scores)

    def data(rows: int) -> dict[str, Any]:
        text = random_of(39).integers(0, 4, (rows, 3)).astype("int32")
        return {"x": {"image": pictures(rows, channels=1), "label": text}}

    return Case(build, data, "adam", None)
