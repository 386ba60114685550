"""A text classifier that is mostly tables: words and pairs of words, in two pipeline stages.

    stage 0   words -> table of words            [rows, length, width]
              pairs of neighbours, hashed -> table of pairs
    stage 1   convolution over words, mean of pairs -> dense layers -> topic

Nearly all weights are in the tables, and nearly all work is in the layers after them: the first
device holds the tables with their optimizer's state, the second computes. Pairs of words are hashed
in the model: a pair without a place of its own shares one. Plain Keras trains the same model for
comparison; losses should agree to 1e-6.

    python examples/text_classifier.py --words 50000 --pairs 500000
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

layers = keras.layers
LENGTH, TOPICS = 40, 6
MICRO_BATCH, ACCUMULATION = 32, 4


def texts(rows: int, words: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws texts of 10 to 40 words, 0 after the end, and their topics.

    Words are as frequent as in a language (Zipf's law). A topic shows in the words that belong to
    it, a third of each text.
    """
    topics = random.integers(0, TOPICS, rows).astype("int32")
    ranks = random.zipf(1.2, (rows, LENGTH)) % (words - 1) + 1
    own = (ranks - topics[:, None]) // TOPICS * TOPICS + topics[:, None]  # words of the topic
    text = np.where(random.random((rows, LENGTH)) < 1 / 3, np.clip(own, 1, words - 1), ranks)
    lengths = random.integers(10, LENGTH + 1, rows)
    return np.where(np.arange(LENGTH) < lengths[:, None], text, 0).astype("int32"), topics


class HashedPairs(layers.Layer):
    """Maps each pair of neighbouring words to one of `places`; 0 where a word is missing."""

    def __init__(self, places: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.places = places

    def call(self, words):
        first, second = words[:, :-1], words[:, 1:]
        mixed = first * 73_856_093 ^ second * 19_349_663  # wraps around
        place = 1 + (mixed ^ mixed >> 15) % (self.places - 1)
        return keras.ops.where(second == 0, 0, place)


def build(
    words: int,
    pairs: int,
    width: int,
    stage: Callable[[int], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> keras.Model:
    """Builds the model; `stage(i)` is the scope of the layer calls of stage i."""
    keras.utils.set_random_seed(0)
    text = keras.Input((LENGTH,), dtype="int32", name="text")
    with stage(0):
        embedded = layers.Embedding(words, width, name="table_of_words")(text)
        places = HashedPairs(pairs, name="hashed_pairs")(text)
        paired = layers.Embedding(pairs, width, name="table_of_pairs")(places)
    with stage(1):
        x = layers.Conv1D(4 * width, 5, padding="same", activation="relu")(embedded)
        x = layers.GlobalMaxPooling1D()(x)
        x = layers.Concatenate()([x, layers.GlobalAveragePooling1D()(paired)])
        x = layers.Dense(8 * width, "relu")(layers.Dropout(0.3)(x))
        topic = layers.Dense(TOPICS, name="topic")(layers.Dropout(0.3)(x))
    return keras.Model(text, topic, name="text_classifier")


def fit(model: keras.Model, data: Any, epochs: int, **optimizer: int) -> list[float]:
    """Trains a model, and returns its losses."""
    model.compile(
        keras.optimizers.Adam(0.002, **optimizer),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=4 * ACCUMULATION,
    )
    keras.utils.set_random_seed(1)  # of the order of rows, and of dropout
    return model.fit(*data, batch_size=MICRO_BATCH, epochs=epochs, verbose=0).history["loss"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=5_000, help="rows of the table of words")
    parser.add_argument("--pairs", type=int, default=20_000, help="rows of the table of pairs")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="small tables, for a quick run")
    options = parser.parse_args()
    words, pairs, width, epochs = options.words, options.pairs, options.width, options.epochs
    rows = 8192
    if options.small:
        words, pairs, width, epochs, rows = 500, 1000, 8, 2, 1024
    random = np.random.default_rng(0)
    data, held_out = texts(rows, words, random), texts(1024, words, random)

    strategy = millrace.Strategy(devices="cpu:2")
    with strategy.scope():
        model = build(words, pairs, width, millrace.PipelineStage)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=ACCUMULATION)
    losses = fit(model, data, epochs)
    for device in strategy.devices:
        held = [v for v in model.variables if device in v.value.devices()]
        print(f"{device}: {sum(v.value.nbytes for v in held):,} bytes of weights")
    stock = build(words, pairs, width)
    plain = fit(stock, data, epochs, gradient_accumulation_steps=ACCUMULATION)
    for epoch, (loss, other) in enumerate(zip(losses, plain, strict=True)):
        print(f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f}")
    accuracy, expected = (m.evaluate(*held_out, verbose=0)[1] for m in (model, stock))
    print(f"accuracy on texts held out: {accuracy:.1%}, plain Keras {expected:.1%}")
    if not np.allclose(losses, plain, rtol=1e-6, atol=0):
        print("the losses should agree to 1e-6")
        return 1
    if losses[-1] >= losses[0]:
        print("the loss should fall")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
