"""Will a model fit on machines that are not here, and how would it be trained there?"""

import millrace  # before Keras: it makes JAX the backend
import keras

strategy = millrace.Strategy(target="h100:2")  # two GPUs, described and compiled for
with strategy.scope():
    tokens = keras.Input((512,), dtype="int32")
    x = keras.layers.Embedding(32_000, 4096)(tokens)
    for _ in range(4):
        x += keras.layers.Dense(4096)(keras.layers.Dense(16_384, "gelu")(x))
    model = keras.Model(tokens, keras.layers.Dense(32_000)(x), name="blocks")
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

rows = ((64, 512), "int32")  # shape and dtype of the tokens, and of the targets
print(strategy.memory_report(model, (rows, rows)))
print(strategy.plan(model, (rows, rows)))
