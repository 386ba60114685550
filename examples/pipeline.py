"""A model in two halves on two devices, with the numbers of plain Keras.

Both models start from the same weights, draw the same dropout and see the same rows in the same
order; both make one update of every 16 micro-batches. The pipeline has half of the weights on each
of two virtual CPU devices. These share the processor's threads, so this shows numbers, not speed.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys

import keras
import numpy as np

strategy = millrace.Strategy(devices="cpu:2")  # before anything else uses JAX

EPOCHS = 2 if "--small" in sys.argv else 10
ROWS, MICRO_BATCH, ACCUMULATION = 2_048, 16, 16  # 128 micro-batches: 8 updates per epoch

# Images of 8 x 8 grey values: one picture for each digit, with noise.
random = np.random.default_rng(0)
digits = random.integers(0, 10, ROWS).astype("int32")
pictures = random.random((10, 64), dtype="float32")
images = pictures[digits] + 0.6 * random.standard_normal((ROWS, 64), dtype="float32")


def build():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(10, "softmax"),
        ]
    )


def train(model, **optimizer):
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, **optimizer),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=2 * ACCUMULATION,
    )
    keras.utils.set_random_seed(1)  # of the order of rows
    history = model.fit(images, digits, batch_size=MICRO_BATCH, epochs=EPOCHS, verbose=0)
    return history.history["loss"]


with strategy.scope():
    pipeline = build()
    pipeline.set_pipeline_stage_assignment([0, 0, 1, 1])  # of each layer
    pipeline.set_pipelining_options(
        gradient_accumulation_steps_per_replica=ACCUMULATION, pipeline_schedule="1f1b"
    )
pipeline.print_pipeline_stage_assignment_summary()

losses = train(pipeline)
statistics = strategy.statistics().pipeline
expected = train(build(), gradient_accumulation_steps=ACCUMULATION)  # outside: plain Keras
for epoch, (loss, other) in enumerate(zip(losses, expected, strict=True)):
    print(f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f}")

loss, accuracy = pipeline.evaluate(images, digits, batch_size=64, verbose=0)
guesses = pipeline.predict(images, batch_size=64, verbose=0).argmax(axis=1)
print(f"evaluate: loss {loss:.4f}, accuracy {accuracy:.1%}; predict: {guesses[:8]} ...")
places = [sorted(map(str, layer.kernel.value.devices())) for layer in pipeline.layers[::2]]
print(f"the first Dense is on {places[0]}, the second on {places[1]}")
print(
    f"last execution of fit: {statistics.last_tasks} tasks, each dispatched in "
    f"{statistics.last_task_seconds * 1e6:.0f} us; the stages held at most "
    f"{statistics.last_in_flight} activation sets"
)

if not np.allclose(losses, expected, rtol=1e-6, atol=0):
    sys.exit("the losses should agree to 1e-6")
if not np.isclose(accuracy, np.mean(guesses == digits), rtol=1e-6):
    sys.exit("evaluate and predict should agree")
