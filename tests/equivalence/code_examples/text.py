"""Text: classification, generation, translation, tags of words, masked words."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from code_examples.example import Case, example, random_of

WORDS = 13
LENGTH = 6


def sentences(rows: int, length: int = LENGTH, padded: bool = False, seed: int = 1) -> np.ndarray:
    """Numbers of words; 0 pads the ends of sentences."""
    random = random_of(seed)
    words = random.integers(1, WORDS, size=(rows, length))
    if padded:
        words[np.arange(length) >= random.integers(2, length + 1, size=(rows, 1))] = 0
    return words.astype("int32")


def with_class(rows: int) -> dict[str, Any]:
    x = sentences(rows)
    return {"x": x, "y": (x.sum(axis=1, keepdims=True) % 2).astype("float32")}


def next_words(rows: int) -> dict[str, Any]:
    x = sentences(rows, LENGTH + 1)
    return {"x": x[:, :-1], "y": x[:, 1:]}


class TokensAndPositions(layers.Layer):
    """The sum of an embedding of words and one of positions."""

    def __init__(self, length: int, words: int, width: int, mask_zero: bool = False):
        super().__init__()
        self.tokens = layers.Embedding(words, width, mask_zero=mask_zero)
        self.positions = layers.Embedding(length, width)

    def call(self, inputs: Any) -> Any:
        return self.tokens(inputs) + self.positions(ops.arange(ops.shape(inputs)[-1]))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return self.tokens.compute_mask(inputs)


class TransformerBlock(layers.Layer):
    """Attention and a feed-forward part, each with dropout, a sum and a normalization."""

    def __init__(self, width: int = 8, heads: int = 2, rate: float = 0.1, causal: bool = False):
        super().__init__()
        self.causal = causal
        self.attention = layers.MultiHeadAttention(heads, width // heads)
        self.feed_forward = keras.Sequential([layers.Dense(12, "relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.dropouts = [layers.Dropout(rate) for _ in range(2)]

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.attention(inputs, inputs, use_causal_mask=self.causal)
        hidden = self.norms[0](inputs + self.dropouts[0](hidden, training=training))
        ahead = self.dropouts[1](self.feed_forward(hidden), training=training)
        return self.norms[1](hidden + ahead)


@example("Text", "text classification with a transformer block")
def text_transformer() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((LENGTH,), dtype="int32")
        hidden = TransformerBlock()(TokensAndPositions(LENGTH, WORDS, 8)(inputs))
        hidden = layers.Dropout(0.1)(layers.GlobalAveragePooling1D()(hidden))
        hidden = layers.Dropout(0.1)(layers.Dense(6, "relu")(hidden))
        return keras.Model(inputs, layers.Dense(2, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        made = with_class(rows)
        return {"x": made["x"], "y": made["y"][:, 0].astype("int32")}

    return Case(build, data, "adam", "sparse_categorical_crossentropy", ["accuracy"])


@example("Text", "bidirectional LSTM")
def bidirectional_lstm() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((None,), dtype="int32")
        hidden = layers.Embedding(WORDS, 6)(inputs)
        hidden = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(hidden)
        hidden = layers.Bidirectional(layers.LSTM(4))(hidden)
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))

    return Case(build, with_class, "adam", "binary_crossentropy", ["accuracy"])


@example("Text", "text classification from scratch, with convolutions")
def text_convnet() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((None,), dtype="int64")
        hidden = layers.Dropout(0.5)(layers.Embedding(WORDS, 8)(inputs))
        for _ in range(2):
            hidden = layers.Conv1D(6, 3, strides=2, padding="same", activation="relu")(hidden)
        hidden = layers.Dropout(0.5)(layers.Dense(8, "relu")(layers.GlobalMaxPooling1D()(hidden)))
        return keras.Model(inputs, layers.Dense(1, "sigmoid", name="predictions")(hidden))

    return Case(build, with_class, "adam", "binary_crossentropy", ["accuracy"])


@example("Text", "frozen pretrained word embeddings")
def pretrained_embeddings() -> Case:
    def build() -> keras.Model:
        table = random_of(5).normal(size=(WORDS, 6)).astype("float32")
        embedding = layers.Embedding(WORDS, 6, trainable=False)
        inputs = keras.Input((LENGTH,), dtype="int32")
        hidden = layers.Conv1D(5, 3, activation="relu")(embedding(inputs))
        hidden = layers.Conv1D(5, 2, activation="relu")(layers.MaxPooling1D(2)(hidden))
        hidden = layers.Dropout(0.5)(layers.Dense(6, "relu")(layers.GlobalMaxPooling1D()(hidden)))
        model = keras.Model(inputs, layers.Dense(3, "softmax")(hidden))
        embedding.set_weights([table])
        return model

    def data(rows: int) -> dict[str, Any]:
        x = sentences(rows)
        return {"x": x, "y": (x[:, 0] % 3).astype("int32")}

    return Case(build, data, "rmsprop", "sparse_categorical_crossentropy", ["acc"])


@example("Text", "miniature GPT: two outputs, one without a loss")
def miniature_gpt() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((LENGTH,), dtype="int32")
        hidden = TokensAndPositions(LENGTH, WORDS, 8)(inputs)
        hidden = TransformerBlock(causal=True)(hidden)
        return keras.Model(inputs, [layers.Dense(WORDS)(hidden), hidden])

    def data(rows: int) -> dict[str, Any]:
        made = next_words(rows)
        return {"x": made["x"], "y": [made["y"], made["y"]]}

    def losses() -> list[Any]:
        return [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None]

    return Case(build, data, "adam", losses)


@example("Text", "sequence to sequence with LSTMs, character by character")
def character_seq2seq() -> Case:
    def build() -> keras.Model:
        source, target = keras.Input((None, 5)), keras.Input((None, 4))
        _, *state = layers.LSTM(6, return_state=True)(source)
        hidden, *_ = layers.LSTM(6, return_sequences=True, return_state=True)(
            target, initial_state=state
        )
        return keras.Model([source, target], layers.Dense(4, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        random = random_of(2)
        source = np.eye(5, dtype="float32")[random.integers(0, 5, (rows, 4))]
        target = np.eye(4, dtype="float32")[random.integers(0, 4, (rows, 6))]
        return {"x": [source, target[:, :-1]], "y": target[:, 1:]}

    return Case(build, data, "rmsprop", "categorical_crossentropy", ["accuracy"])


@example("Text", "addition of numbers as sequences")
def addition_rnn() -> Case:
    def build() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((5, 7)),
                layers.LSTM(6),
                layers.RepeatVector(3),
                layers.LSTM(6, return_sequences=True),
                layers.Dense(7, "softmax"),
            ]
        )

    def data(rows: int) -> dict[str, Any]:
        random = random_of(3)
        both = np.eye(7, dtype="float32")[random.integers(0, 7, (rows, 8))]
        return {"x": both[:, :5], "y": both[:, 5:]}

    return Case(build, data, "adam", "categorical_crossentropy", ["accuracy"])


class Decoder(layers.Layer):
    """Attends to the words so far, and to what an encoder made of the source."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.supports_masking = True
        self.own = layers.MultiHeadAttention(2, width // 2)
        self.cross = layers.MultiHeadAttention(2, width // 2)
        self.feed_forward = keras.Sequential([layers.Dense(12, "relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization() for _ in range(3)]

    def call(self, inputs: Any, mask: Any = None) -> Any:
        target, source = inputs
        target_mask, source_mask = (None, None) if mask is None else mask
        own = self.own(target, target, query_mask=target_mask, use_causal_mask=True)
        hidden = self.norms[0](target + own)
        cross = self.cross(hidden, source, query_mask=target_mask, key_mask=source_mask)
        hidden = self.norms[1](hidden + cross)
        return self.norms[2](hidden + self.feed_forward(hidden))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        return None if mask is None else mask[0]


@example("Text", "translation with an encoder and a decoder, padded sentences")
def translation_transformer() -> Case:
    def build() -> keras.Model:
        source = keras.Input((None,), dtype="int64", name="encoder_inputs")
        target = keras.Input((None,), dtype="int64", name="decoder_inputs")
        encoded = TokensAndPositions(LENGTH, WORDS, 8, mask_zero=True)(source)
        encoded = TransformerBlock(rate=0.0)(encoded)
        hidden = TokensAndPositions(LENGTH, WORDS, 8, mask_zero=True)(target)
        hidden = layers.Dropout(0.3)(Decoder()([hidden, encoded]))
        outputs = layers.Dense(WORDS, "softmax")(hidden)
        return keras.Model({"encoder_inputs": source, "decoder_inputs": target}, outputs)

    def data(rows: int) -> dict[str, Any]:
        target = sentences(rows, LENGTH + 1, padded=True, seed=7)
        source = sentences(rows, padded=True)
        return {
            "x": {"encoder_inputs": source, "decoder_inputs": target[:, :-1]},
            "y": target[:, 1:],
        }

    def loss() -> Any:
        return keras.losses.SparseCategoricalCrossentropy(ignore_class=0)

    return Case(build, data, "rmsprop", loss, ["accuracy"])


class Tagger(keras.Model):
    """A subclassed model that tags every word."""

    def __init__(self, tags: int):
        super().__init__()
        self.embedding = TokensAndPositions(LENGTH, WORDS, 8)
        self.block = TransformerBlock()
        self.dropouts = [layers.Dropout(0.1), layers.Dropout(0.1)]
        self.hidden = layers.Dense(8, "relu")
        self.tags = layers.Dense(tags, "softmax")

    def call(self, inputs: Any, training: bool = False) -> Any:
        hidden = self.block(self.embedding(inputs), training=training)
        hidden = self.hidden(self.dropouts[0](hidden, training=training))
        return self.tags(self.dropouts[1](hidden, training=training))


class WithoutPadding(keras.losses.Loss):
    """The cross entropy of the words that are none of the padding."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        counted = ops.cast(y_true > 0, loss.dtype)
        return ops.sum(loss * counted) / ops.sum(counted)


@example("Text", "named entities with a subclassed transformer and a loss of its own")
def named_entities() -> Case:
    def data(rows: int) -> dict[str, Any]:
        x = sentences(rows, padded=True)
        return {"x": x, "y": np.where(x > 0, 1 + x % 3, 0).astype("int32")}

    return Case(lambda: Tagger(4), data, "adam", WithoutPadding)


class MaskedWords(keras.Model):
    """Guesses words that were hidden; a loss and a metric of its own, weighted."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean(name="masked")

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        each = keras.losses.sparse_categorical_crossentropy(y, y_pred)
        loss = ops.sum(each * sample_weight) / ops.sum(sample_weight)
        self.tracker.update_state(loss)
        return loss


@example("Text", "masked words in the manner of BERT, with sample weights")
def masked_language_model() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((LENGTH,), dtype="int64")
        hidden = TransformerBlock()(TokensAndPositions(LENGTH, WORDS + 1, 8)(inputs))
        return MaskedWords(inputs, layers.Dense(WORDS, "softmax")(hidden))

    def data(rows: int) -> dict[str, Any]:
        y, random = sentences(rows), random_of(4)
        hidden = random.random(y.shape) < 0.4
        hidden[:, 0] = True
        x = np.where(hidden, WORDS, y)
        return {"x": x, "y": y, "sample_weight": hidden.astype("float32")}

    return Case(build, data, "adam", None)


class Switch(layers.Layer):
    """Sends each word to one of several experts, and adds a loss that keeps them equally busy."""

    def __init__(self, experts: int = 3, width: int = 8):
        super().__init__()
        self.router = layers.Dense(experts)
        self.experts = [
            keras.Sequential([layers.Dense(12, "relu"), layers.Dense(width)])
            for _ in range(experts)
        ]

    def call(self, inputs: Any, training: bool = False) -> Any:
        logits = self.router(inputs)
        if training:
            logits = logits + keras.random.uniform(logits.shape, 0.99, 1.01, seed=3)
        gates = ops.softmax(logits)
        chosen = ops.one_hot(ops.argmax(gates, axis=-1), len(self.experts))
        share, weight = ops.mean(chosen, axis=(0, 1)), ops.mean(gates, axis=(0, 1))
        self.add_loss(0.01 * len(self.experts) * ops.sum(share * weight))
        outputs = ops.stack([expert(inputs) for expert in self.experts], axis=-1)
        return ops.sum(outputs * ops.expand_dims(chosen * gates, -2), axis=-1)


@example("Text", "switch transformer: experts, routing and a balancing loss")
def switch_transformer() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((LENGTH,), dtype="int32")
        hidden = TokensAndPositions(LENGTH, WORDS, 8)(inputs)
        attended = layers.MultiHeadAttention(2, 4)(hidden, hidden)
        hidden = layers.LayerNormalization()(hidden + attended)
        hidden = layers.LayerNormalization()(hidden + Switch()(hidden))
        hidden = layers.Dropout(0.25)(layers.GlobalAveragePooling1D()(hidden))
        return keras.Model(inputs, layers.Dense(1, "sigmoid")(hidden))

    return Case(build, with_class, "adam", "binary_crossentropy", ["accuracy"])


class FourierMixing(layers.Layer):
    """Mixes words by a Fourier transform in place of attention."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.feed_forward = keras.Sequential([layers.Dense(12, "gelu"), layers.Dense(width)])

    def call(self, inputs: Any) -> Any:
        real, _ = ops.fft2((inputs, ops.zeros_like(inputs)))
        hidden = self.norms[0](inputs + real)
        return self.norms[1](hidden + self.feed_forward(hidden))


@example("Text", "FNet: Fourier transforms in place of attention")
def fourier_text() -> Case:
    def build() -> keras.Model:
        inputs = keras.Input((LENGTH,), dtype="int32")
        hidden = FourierMixing()(TokensAndPositions(LENGTH, WORDS, 8)(inputs))
        return keras.Model(inputs, layers.Dense(WORDS, "softmax")(hidden))

    return Case(build, next_words, "adam", "sparse_categorical_crossentropy")
