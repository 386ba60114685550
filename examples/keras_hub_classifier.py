"""A BERT of KerasHub reads texts, in two stages, and trains as in plain Keras."""

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np
from keras_hub import models

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "day", "night"]
texts = ["a good day", "a bad day", "good night", "bad night"] * 16
labels = np.array([1, 0, 1, 0] * 16)


def build():
    keras.utils.set_random_seed(0)
    tokenizer = models.BertTokenizer(vocabulary=words)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    return models.BertTextClassifier(
        models.BertBackbone(vocabulary_size=len(words), **sizes),
        num_classes=2,
        preprocessor=models.BertTextClassifierPreprocessor(tokenizer, sequence_length=6),
    )


def opened(calls):
    """Yields the calls of a model and, in place of those of nested models, what they call."""
    for call in calls:
        inner = getattr(call, "pipeline_stage_assignments", None)
        yield from [call] if inner is None else opened(inner)


def train(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(0.02, **options)
    model.compile(optimizer=optimizer, loss=loss, steps_per_execution=8)
    history = model.fit(texts, labels, batch_size=4, epochs=10, shuffle=False, verbose=0).history
    print("loss:", *(f"{loss:.4f}" for loss in history["loss"][::3]))


with millrace.Strategy(devices="cpu:2").scope():
    model = build()
calls, stage = model.get_pipeline_stage_assignment(), 0
for call in opened(calls):  # in the order in which they run
    stage = 1 if call.layer.name == "transformer_layer_1" else stage
    call.pipeline_stage = stage
model.set_pipeline_stage_assignment(calls)
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
train(model)
train(build(), gradient_accumulation_steps=4)  # plain Keras
print("predicted:", *model.predict(["a good night", "a bad night"], verbose=0).argmax(axis=1))
