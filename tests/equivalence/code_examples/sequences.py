"""Sounds and time series."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of
from code_examples.text import TransformerBlock, WithoutPadding

CLASSES = 3


def waves(rows: int, length: int = 32, channels: int = 1, seed: int = 41) -> np.ndarray:
    """Sines of a frequency each, with noise."""
    random = random_of(seed)
    speed = random.uniform(0.2, 1.0, (rows, 1, channels))
    wave = np.sin(speed * np.arange(length)[:, None])
    return (wave + random.normal(0, 0.1, wave.shape)).astype("float32")


def classes(rows: int) -> np.ndarray:
    return random_of(42).integers(0, CLASSES, (rows,)).astype("int32")


@example("Audio", "speakers by residual convolutions over a Fourier transform")
def speaker_convnet() -> Case:
    def block(inputs: Any, filters: int) -> Any:
        short = layers.Conv1D(filters, 1, padding="same")(inputs)
        hidden = layers.Activation("relu")(layers.Conv1D(filters, 3, padding="same")(inputs))
        hidden = layers.Add()([layers.Conv1D(filters, 3, padding="same")(hidden), short])
        return layers.MaxPool1D(2, strides=2)(layers.Activation("relu")(hidden))

    def spectrum(sound: Any) -> Any:
        real, imaginary = ops.rfft(ops.squeeze(sound, -1))
        return ops.sqrt(ops.square(real) + ops.square(imaginary) + 1e-6)[:, :16, None]

    def build() -> keras.Model:
        inputs = keras.Input((32, 1))
        hidden = layers.Lambda(spectrum, output_shape=(16, 1))(inputs)
        hidden = layers.AveragePooling1D(2, strides=2)(block(block(hidden, 4), 6))
        hidden = layers.Dense(8, "relu")(layers.Flatten()(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        return {"x": waves(rows), "y": classes(rows)}

    return Case(build, data, "adam", "sparse_categorical_crossentropy", ["accuracy"])


@example("Audio", "spectrograms in the model")
def spectrogram_convnet() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((64, 1))
        hidden = layers.STFTSpectrogram(
            mode="log", frame_length=16, frame_step=8, fft_length=16, trainable=False
        )(inputs)
        hidden = layers.Reshape((7, 9, 1))(hidden)
        hidden = layers.MaxPooling2D(2)(layers.Conv2D(4, 3, activation="relu")(hidden))
        hidden = layers.BatchNormalization()(layers.Flatten()(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        return {"x": waves(rows, 64), "y": classes(rows)}

    return Case(build, data, "adam", "sparse_categorical_crossentropy", ["accuracy"])


class Listener(keras.Model):
    """Hears frames of sound, and writes characters."""

    def __init__(self, characters: int = 8, width: int = 8):
        super().__init__()
        self.frames = [
            layers.Conv1D(width, 3, strides=2, padding="same", activation="relu") for _ in range(2)
        ]
        self.encoder = TransformerBlock(width)
        self.embedding = layers.Embedding(characters, width)
        self.places = layers.Embedding(6, width)
        self.own, self.cross = layers.MultiHeadAttention(2, 4), layers.MultiHeadAttention(2, 4)
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropout, self.scores = layers.Dropout(0.1), layers.Dense(characters, "softmax")

    def call(self, inputs: Any, training: bool = False) -> Any:
        sound, text = inputs
        for layer in self.frames:
            sound = layer(sound)
        sound = self.encoder(sound, training=training)
        hidden = self.embedding(text) + self.places(ops.arange(text.shape[1]))
        own = self.own(hidden, hidden, use_causal_mask=True)
        hidden = self.norms[0](hidden + self.dropout(own, training=training))
        hidden = self.norms[1](hidden + self.cross(hidden, sound))
        return self.scores(hidden)


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rises for some updates, then falls."""

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        return ops.minimum(1e-3 * (1 + step), 1e-2 * ops.exp(-0.2 * step))


def text_of(rows: int, length: int = 6, characters: int = 8) -> np.ndarray:
    return random_of(43).integers(1, characters, (rows, length)).astype("int32")


@example("Audio", "speech to text with a transformer, a schedule of its own, padded targets")
def speech_transformer() -> Case:
    def data(rows: int) -> dict[str, Any]:
        text = text_of(rows)
        text[np.arange(6) >= random_of(44).integers(3, 7, (rows, 1))] = 0
        return {"x": [waves(rows, 16, 4), text[:, :-1]], "y": text[:, 1:]}

    def optimizer(**more: Any) -> Any:
        return keras.optimizers.Adam(WarmUp(), **more)

    return Case(Listener, data, optimizer, WithoutPadding, by_hand=True)


@example("Audio", "speech to text with GRUs and the CTC loss")
def speech_ctc() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((24, 4))
        hidden = layers.Reshape((-1, 4, 1))(inputs)
        hidden = layers.Conv2D(3, 3, strides=2, padding="same", use_bias=False)(hidden)
        hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
        hidden = layers.Reshape((-1, 6))(hidden)
        gru = layers.GRU(4, return_sequences=True, reset_after=True)
        hidden = layers.Dropout(0.5)(layers.Bidirectional(gru)(hidden))
        return keras.Model(inputs, layers.Dense(6)(layers.Dense(6, "relu")(hidden)))

    def data(rows: int) -> dict[str, Any]:
        return {"x": waves(rows, 24, 4), "y": text_of(rows, 4, 6)}

    return Case(build, data, "adam", keras.losses.CTC)


@example("Time series", "transformer classifier")
def series_transformer() -> Case:
    def build() -> keras.Model:
        inputs = hidden = keras.Input((12, 1))
        for _ in range(2):
            attended = layers.MultiHeadAttention(2, 4, dropout=0.25)(hidden, hidden)
            attended = layers.LayerNormalization(epsilon=1e-6)(layers.Dropout(0.25)(attended))
            before = attended + hidden
            ahead = layers.Dropout(0.25)(layers.Conv1D(4, 1, activation="relu")(before))
            ahead = layers.Conv1D(1, 1)(ahead)
            hidden = layers.LayerNormalization(epsilon=1e-6)(ahead) + before
        hidden = layers.GlobalAveragePooling1D(data_format="channels_last")(hidden)
        hidden = layers.Dropout(0.4)(layers.Dense(8, "relu")(hidden))
        return keras.Model(inputs, layers.Dense(CLASSES, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        return {"x": waves(rows, 12), "y": classes(rows)}

    return Case(build, data, "adam", "sparse_categorical_crossentropy")


@example("Time series", "classification with convolutions")
def series_convnet() -> Case:
    def build() -> keras.Model:
        inputs = hidden = keras.Input((12, 1))
        for _ in range(3):
            hidden = layers.Conv1D(4, 3, padding="same")(hidden)
            hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
        hidden = layers.GlobalAveragePooling1D()(hidden)
        return keras.Model(inputs, layers.Dense(CLASSES, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        return {"x": waves(rows, 12), "y": classes(rows)}

    def metrics() -> list[str]:
        return ["sparse_categorical_accuracy"]

    return Case(build, data, "adam", "sparse_categorical_crossentropy", metrics)


@example("Time series", "forecast of the weather with an LSTM")
def weather_lstm() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((10, 7))
        return keras.Model(inputs, layers.Dense(1)(layers.LSTM(6)(inputs)))

    def data(rows: int) -> dict[str, Any]:
        x = waves(rows, 11, 7)
        return {"x": x[:, :10], "y": x[:, 10, :1]}

    return Case(build, data, "adam", "mse")


class RoadGraph(layers.Layer):
    """Convolves over a graph of roads, then runs an LSTM over the time of each."""

    def __init__(
        self, edges: list[tuple[int, int]], width: int = 3, units: int = 4, ahead: int = 2
    ):
        super().__init__()
        self.froms, self.tos = (np.array(ends, "int32") for ends in zip(*edges, strict=True))
        self.width, self.ahead = width, ahead
        self.lstm, self.outputs = layers.LSTM(units, activation="relu"), layers.Dense(ahead)

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.width), initializer="glorot_uniform")

    def call(self, inputs: Any) -> Any:
        roads = ops.transpose(inputs, (2, 0, 1, 3))
        number, rows, steps = roads.shape[0], ops.shape(roads)[1], roads.shape[2]
        sums = ops.segment_sum(ops.take(roads, self.froms, axis=0), self.tos, number)
        both = ops.concatenate([roads @ self.kernel, (sums / 2) @ self.kernel], axis=-1)
        hidden = ops.reshape(ops.relu(both), (-1, steps, 2 * self.width))
        ahead = ops.reshape(self.outputs(self.lstm(hidden)), (number, rows, self.ahead))
        return ops.transpose(ahead, (1, 2, 0))


@example("Time series", "traffic: an LSTM over a graph of roads")
def traffic_graph() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((5, 4, 1))
        edges = [(0, 1), (1, 0), (1, 2), (2, 3), (3, 0)]
        return keras.Model(inputs, RoadGraph(edges)(inputs))

    def data(rows: int) -> dict[str, Any]:
        x = waves(rows, 7, 4)
        return {"x": x[:, :5, :, None], "y": x[:, 5:]}

    def optimizer(**more: Any) -> Any:
        return keras.optimizers.RMSprop(2e-4, **more)

    one = {"cut": "A model of 1 layer calls cannot be cut into 2 stages"}
    return Case(build, data, optimizer, keras.losses.MeanSquaredError, refused=one)


@example("Time series", "anomalies by an autoencoder")
def anomaly_autoencoder() -> Case:
    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((16, 1)),
                layers.Conv1D(6, 5, padding="same", strides=2, activation="relu"),
                layers.Dropout(0.2),
                layers.Conv1D(4, 5, padding="same", strides=2, activation="relu"),
                layers.Conv1DTranspose(4, 5, padding="same", strides=2, activation="relu"),
                layers.Dropout(0.2),
                layers.Conv1DTranspose(6, 5, padding="same", strides=2, activation="relu"),
                layers.Conv1DTranspose(1, 5, padding="same"),
            ]
        )

    def data(rows: int) -> dict[str, Any]:
        x = waves(rows, 16)
        return {"x": x, "y": x}

    return Case(build, data, "adam", "mse")
