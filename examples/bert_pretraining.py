"""BERT's pre-training in four pipeline stages: masked words, next sentences, accumulation.

    stage 0   words, segments and positions -> embeddings; a quarter of the encoder layers
    stage 1   a quarter of the encoder layers
    stage 2   a quarter of the encoder layers
    stage 3   the rest, the table of words again -> masked words; first position -> next sentence

Stage 3 predicts words with the table of stage 0, so the table is trained by both. The data are
sentences of a small language of its own: each word depends on the one before it, and the second
half of a row continues with the first in half of the rows. Plain Keras trains the same model for
comparison; losses should agree to 1e-6, dropout included.

    python examples/bert_pretraining.py --layers 8 --hidden 128
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import argparse
import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

layers = keras.layers
WORDS, LENGTH, MASKED = 20, 32, 5  # words of the language; of a row; hidden ones of a row
FIRST, SEPARATOR, MASK = 0, 1, 2  # special words; the others start at 3
MICRO_BATCH, ACCUMULATION, STAGES = 8, 8, 4


def sentences(rows: int, random: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Makes rows of two half sentences, hides some of their words, and returns both."""
    starts = random.integers(3, WORDS, rows)
    words = np.empty((rows, LENGTH), "int32")
    words[:, 0], half = FIRST, LENGTH // 2
    follows = random.random(rows) < 0.5
    word = starts
    for place in range(1, LENGTH):
        if place == half:  # half of the rows continue with an unrelated word
            word = np.where(follows, word, random.integers(3, WORDS, rows))
        word = 3 + (word - 3 + 7) % (WORDS - 3)
        words[:, place] = word
    words[:, half - 1] = SEPARATOR
    order = random.random((rows, LENGTH))
    order[:, [0, half - 1]] = 2.0  # special words stay
    places = np.sort(order.argsort(1)[:, :MASKED], 1).astype("int32")
    targets = np.take_along_axis(words, places, 1)
    np.put_along_axis(words, places, MASK, 1)
    segments = np.broadcast_to(np.arange(LENGTH) >= half, words.shape).astype("int32")
    x = {"words": words, "segments": segments, "places": places}
    return x, {"masked_words": targets, "next_sentence": follows.astype("int32")}


class Positions(layers.Layer):
    """Adds a trained vector to each position."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer="random_normal", name="table")

    def call(self, x):
        return x + self.table


class TakePlaces(layers.Layer):
    """Takes the positions of hidden words out of a row."""

    def call(self, x, places):
        return keras.ops.take_along_axis(x, places[..., None], axis=1)


def encoder_layer(x: keras.KerasTensor, number: int, hidden: int) -> keras.KerasTensor:
    """Attention and two dense layers, each with dropout, a sum and a normalization."""
    name = f"layer_{number}"
    attention = layers.MultiHeadAttention(4, hidden // 4, dropout=0.1, name=f"{name}_attention")
    x = layers.LayerNormalization()(x + layers.Dropout(0.1)(attention(x, x)))
    dense = layers.Dense(4 * hidden, "gelu", name=f"{name}_wide")(x)
    dense = layers.Dense(hidden, name=f"{name}_narrow")(dense)
    return layers.LayerNormalization()(x + layers.Dropout(0.1)(dense))


def build(
    depth: int,
    hidden: int,
    stage: Callable[[int], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> keras.Model:
    """Builds the model; `stage(i)` is the scope of the layer calls of stage i."""
    keras.utils.set_random_seed(0)
    words = keras.Input((LENGTH,), dtype="int32", name="words")
    segments = keras.Input((LENGTH,), dtype="int32", name="segments")
    places = keras.Input((MASKED,), dtype="int32", name="places")
    table = layers.ReversibleEmbedding(WORDS, hidden, name="word_table")
    per_stage = math.ceil(depth / STAGES)
    x: Any = None
    for number in range(depth):
        with stage(number // per_stage):
            if number == 0:
                x = table(words) + layers.Embedding(2, hidden, name="segment_table")(segments)
                x = layers.Dropout(0.1)(layers.LayerNormalization()(Positions()(x)))
            x = encoder_layer(x, number, hidden)
    with stage(STAGES - 1):
        pooled = layers.Dense(hidden, "tanh", name="pooler")(x[:, 0])
        follows = layers.Dense(2, name="next_sentence")(pooled)
        hidden_words = TakePlaces()(x, places)
        hidden_words = layers.Dense(hidden, "gelu", name="transform")(hidden_words)
        hidden_words = layers.LayerNormalization()(hidden_words)
        scores = table(hidden_words, reverse=True)
        scores = layers.Identity(name="masked_words")(scores)
    outputs = {"masked_words": scores, "next_sentence": follows}
    return keras.Model([words, segments, places], outputs, name="bert")


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rises to `peak` over the first updates, then falls to zero at the last.

    Plain Keras asks it at each step, also between two updates: `steps` of them make one.
    """

    def __init__(self, peak: float, warm_up: int, updates: int, steps: int = 1):
        self.peak, self.warm_up, self.updates, self.steps = peak, warm_up, updates, steps

    def __call__(self, count):
        update = keras.ops.cast(count // self.steps + 1, "float32")
        left = (self.updates + 1 - update) / (self.updates + 1 - self.warm_up)
        return self.peak * keras.ops.minimum(update / self.warm_up, keras.ops.maximum(left, 0))

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


def train(model: keras.Model, data: Any, epochs: int, plain: bool) -> dict[str, list[float]]:
    """Trains a model, and returns its losses."""
    x, y = data
    updates = epochs * len(x["words"]) // (MICRO_BATCH * ACCUMULATION)
    rate = WarmUp(0.001, max(updates // 10, 1), updates, ACCUMULATION if plain else 1)
    accumulation = {"gradient_accumulation_steps": ACCUMULATION} if plain else {}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.01, epsilon=1e-6, **accumulation),
        loss={"masked_words": loss, "next_sentence": loss},
        steps_per_execution=ACCUMULATION,
    )
    keras.utils.set_random_seed(1)  # of the order of rows, and of dropout
    return model.fit(x, y, batch_size=MICRO_BATCH, epochs=epochs, verbose=0).history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4, help="of the encoder, at least 4")
    parser.add_argument("--hidden", type=int, default=64, help="width, a multiple of 4")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--small", action="store_true", help="a narrow model, for a quick run")
    options = parser.parse_args()
    depth, hidden, epochs, rows = options.layers, options.hidden, options.epochs, 2048
    if options.small:
        depth, hidden, epochs, rows = 4, 16, 2, 256
    data = sentences(rows, np.random.default_rng(0))

    strategy = millrace.Strategy(devices=f"cpu:{STAGES}")
    with strategy.scope():
        model = build(depth, hidden, millrace.PipelineStage)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=ACCUMULATION)
    model.print_pipeline_stage_assignment_summary()
    history = train(model, data, epochs, plain=False)
    plain = train(build(depth, hidden), data, epochs, plain=True)
    for epoch, (loss, other) in enumerate(zip(history["loss"], plain["loss"], strict=True)):
        words, follows = history["masked_words_loss"][epoch], history["next_sentence_loss"][epoch]
        print(
            f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f} (masked words {words:.4f}, "
            f"next sentence {follows:.4f})"
        )
    if not np.allclose(history["loss"], plain["loss"], rtol=1e-6, atol=0):
        print("the losses should agree to 1e-6")
        return 1
    if history["loss"][-1] >= history["loss"][0]:
        print("the loss should fall")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
