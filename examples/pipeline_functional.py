"""A model with branches in three stages: scopes, tied weights, and three schedules of one cut.

    stage 0   words -> embedding ------+------> dense
    stage 1                            |        dense -> topic (an output)
    stage 2                  the same embedding, add -> next word (an output)

The embedding skips stage 1, and stage 2 reads its table again: its gradients come from both stages,
and it is updated on the first. Plain Keras trains the same model for comparison.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import contextlib
import sys

import keras
import numpy as np

strategy = millrace.Strategy(devices="cpu:3")  # before anything else uses JAX

EPOCHS = 1 if "--small" in sys.argv else 5
ROWS, MICRO_BATCH, ACCUMULATION = 2_048, 8, 8
WORDS, LENGTH, TOPICS = 20, 6, 4

random = np.random.default_rng(0)
first = random.integers(0, WORDS, (ROWS, 1))
step = random.integers(1, TOPICS + 1, (ROWS, 1))  # the topic is the distance between words
text = ((first + step * np.arange(LENGTH + 1)) % WORDS).astype("int32")
x = text[:, :-1]
y = {"topic": step[:, 0] - 1, "next_word": text[:, 1:]}


class Unembed(keras.layers.Layer):
    """Scores of all words, from the table of an embedding."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, inputs):
        """Maps values to one score per word."""
        return keras.ops.matmul(inputs, keras.ops.transpose(self.embedding.embeddings))


def build(stage=lambda number: contextlib.nullcontext()):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    words = keras.Input((LENGTH,), dtype="int32")
    with stage(0):
        embedding = layers.Embedding(WORDS, 16)
        embedded = embedding(words)
        hidden = layers.Dense(32, "tanh")(embedded)
    with stage(1):
        hidden = layers.Dense(16, "tanh")(hidden)
        topic = layers.Dense(TOPICS, name="topic")(layers.Flatten()(hidden))
    with stage(2):
        hidden = layers.add([hidden, embedded])  # `embedded` skips stage 1
        next_word = Unembed(embedding, name="next_word")(hidden)
    return keras.Model(words, {"topic": topic, "next_word": next_word})


def train(name, model, **optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.Adam(0.01, **optimizer),
        loss={"topic": loss, "next_word": loss},
        steps_per_execution=2 * ACCUMULATION,
    )
    keras.utils.set_random_seed(1)  # of the order of rows
    history = model.fit(x, y, batch_size=MICRO_BATCH, epochs=EPOCHS, verbose=0).history
    print(f"{name}: loss {history['loss'][-1]:.7f}")
    return history["loss"], model.get_weights()


def largest_difference(run, other):
    return max(float(np.abs(a - b).max()) for a, b in zip(run[1], other[1], strict=True))


runs = []
for schedule, mapping in (("1f1b", [0, 1, 2]), ("gpipe", [2, 0, 2]), ("zero_bubble", [1, 2, 0])):
    with strategy.scope():
        model = build(millrace.PipelineStage)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=ACCUMULATION,
        pipeline_schedule=schedule,
        device_mapping=mapping,
    )
    if not runs:
        model.print_pipeline_stage_assignment_summary()
    runs.append(train(f"{schedule} on devices {mapping}", model))

plain = train("plain Keras", build(), gradient_accumulation_steps=ACCUMULATION)

losses = [losses for losses, _ in runs]
differences = [largest_difference(run, runs[0]) for run in runs]
print(f"largest difference of a weight from 1f1b: {differences[1]:.1e}, {differences[2]:.1e}")
if losses[1] != losses[0] or differences[1] > 0:
    sys.exit("1f1b and gpipe should agree to the last bit, on any devices")
if not np.allclose(losses[2], losses[0], rtol=1e-6, atol=0):
    sys.exit("zero_bubble should agree to 1e-6")
if not np.allclose(losses[0], plain[0], rtol=1e-6, atol=0):
    sys.exit("a pipeline and plain Keras should agree to 1e-6")
