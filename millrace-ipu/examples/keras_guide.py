"""Keras on IPUs: the situations of the guide to IPU TensorFlow.

Each function is one situation, and prints its results.

    python millrace-ipu/examples/keras_guide.py                        all, on eight virtual devices
    python millrace-ipu/examples/keras_guide.py gradient_accumulation
"""

from millrace_ipu import ipu  # isort: skip - first: it makes JAX the backend of Keras

import os
import sys
import tempfile

import numpy as np

from millrace_ipu import tensorflow as tf

SMALL = "--small" in sys.argv
ROWS, BATCHES = 16, 16 if SMALL else 96
SIZE = 8 if SMALL else 28  # pixels of an image


def configure(devices):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = devices
    config.configure_ipu_system()
    return ipu.ipu_strategy.IPUStrategy()


def create_dataset(batches=BATCHES):
    random = np.random.default_rng(0)
    images = random.random((ROWS * 4, SIZE, SIZE, 1))
    digits = random.integers(0, 10, ROWS * 4)
    dataset = tf.data.Dataset.from_tensor_slices((images, digits)).shuffle(len(images))
    dataset = dataset.batch(ROWS, drop_remainder=True)
    dataset = dataset.map(lambda x, y: (tf.cast(x, tf.float32), tf.cast(y, tf.int32)))
    return dataset.repeat().take(batches)


def layers():
    return [
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]


def compile_and_fit(model, steps_per_execution=None, **arguments):
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        optimizer=tf.keras.optimizers.SGD(0.01),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution or 1,
    )
    return model.fit(create_dataset(), epochs=2, verbose=0, **arguments).history["loss"]


def single_device():
    """A model built in the scope runs on the device."""
    with configure(1).scope():
        model = tf.keras.Sequential(layers())
        losses = compile_and_fit(model)
        loss, _ = model.evaluate(create_dataset(), verbose=0)
    return f"losses {losses}, then {loss:.4f}"


def steps_per_execution():
    """Many batches per call from Python."""
    with configure(1).scope():
        losses = compile_and_fit(tf.keras.Sequential(layers()), BATCHES)
    return f"{BATCHES} batches in an execution, losses {losses}"


def gradient_accumulation():
    """Several batches per weight update."""
    with configure(1).scope():
        model = tf.keras.Sequential(layers())
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=8)
        compile_and_fit(model, BATCHES)
    updates = int(model.optimizer.iterations)
    return f"{updates} updates of {2 * BATCHES} batches"


def sequential_stages():
    """A Sequential as a pipeline: one stage per layer."""
    with configure(2).scope():
        model = tf.keras.Sequential(layers())
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=8)
        losses = compile_and_fit(model, BATCHES)
    model.print_pipeline_stage_assignment_summary()
    return f"two stages, losses {losses}"


def functional_stages():
    """A Functional model as a pipeline: stages around the calls of its layers."""
    with configure(2).scope():
        x = inputs = tf.keras.layers.Input((SIZE, SIZE, 1))
        for number, layer in enumerate(layers()):
            with ipu.keras.PipelineStage(number // 2):
                x = layer(x)
        model = tf.keras.Model(inputs=inputs, outputs=x)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=8)
        losses = compile_and_fit(model, BATCHES)
    return f"two stages, losses {losses}"


def blocks():
    """A model from a library; with --small a short one with the same names."""
    if not SMALL:
        return tf.keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    x = inputs = tf.keras.layers.Input((SIZE, SIZE, 1))
    for name in ("conv4_block1", "conv4_block2", "conv4_block3"):
        y = tf.keras.layers.Conv2D(1, 3, padding="same", name=f"{name}_conv")(x)
        x = tf.keras.layers.Add(name=f"{name}_add")([x, y])
    return tf.keras.Model(inputs, x)


def existing_model():
    """An existing model as a pipeline: each of its calls gets a stage."""
    with configure(2).scope():
        model = blocks()
        stage, assignments = 0, model.get_pipeline_stage_assignment()
        for assignment in assignments:
            assignment.pipeline_stage = stage
            if assignment.layer.name.startswith("conv4_block2_add"):
                stage = 1  # from the next call on
        model.set_pipeline_stage_assignment(assignments)
    lines = []
    model.print_pipeline_stage_assignment_summary(line_length=85, print_fn=lines.append)
    print("\n".join(lines if SMALL else lines[:9]))
    last = max(i for i, assignment in enumerate(assignments) if not assignment.pipeline_stage)
    return (
        f"stage 0 ends with {assignments[last].layer.name}, call {last + 1} of {len(assignments)}"
    )


def data_parallelism():
    """As many replicas as the devices allow."""
    with configure(8).scope():
        model = tf.keras.Sequential(layers())
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        compile_and_fit(model, BATCHES)
    replicas = 8 // 2
    return f"{int(model.optimizer.iterations)} updates of {ROWS * 4 * replicas} rows"


class Counter(tf.keras.callbacks.Callback):
    """Counts the starts and ends of batches."""

    def __init__(self):
        super().__init__()
        self.began = self.ended = 0

    def on_train_batch_begin(self, batch, logs=None):
        """Counts one."""
        self.began += 1

    def on_train_batch_end(self, batch, logs=None):
        """Counts one."""
        self.ended += 1


def asynchronous_callbacks():
    """Callbacks for each batch, while an execution runs."""
    found = []
    with configure(1).scope():
        for asynchronous in (False, True):
            model, counter = tf.keras.Sequential(layers()), Counter()
            model.set_asynchronous_callbacks(asynchronous)
            compile_and_fit(model, BATCHES // 2, callbacks=[counter])
            found.append(counter.ended)
    return f"{found[0]} calls at the ends of executions, {found[1]} at the ends of batches"


def queue_options():
    """Depths of the queues of data and results."""
    with configure(1).scope():
        model = tf.keras.Sequential(layers())
        model.set_infeed_queue_options(prefetch_depth=2)
        model.set_outfeed_queue_options(buffer_depth=2)
        losses = compile_and_fit(model, BATCHES)
    return f"losses {losses}"


def ported():
    """The port of a PipelineSequential(..., gradient_accumulation_count=16) of TF 2.1."""
    with configure(2).scope():
        model = tf.keras.Sequential(layers())
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(),
            optimizer=tf.keras.optimizers.RMSprop(),
            steps_per_execution=256,  # limited to the steps of the epoch
        )
        model.fit(create_dataset(256), epochs=2, steps_per_epoch=128, verbose=0)
    return f"{int(model.optimizer.iterations)} updates in two epochs of 128 steps"


def saving():
    """A saved model keeps its options, if it is loaded in a scope."""
    strategy = configure(2)
    with strategy.scope(), tempfile.TemporaryDirectory() as directory:
        model = tf.keras.Sequential([tf.keras.layers.Input((SIZE, SIZE, 1)), *layers()])
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=8)
        path = os.path.join(directory, "model.keras")
        model.save(path)
        model = tf.keras.models.load_model(path)
        stages = [a.pipeline_stage for a in model.get_pipeline_stage_assignment()]
        compile_and_fit(model, BATCHES)
    return f"stages {stages}, {int(model.optimizer.iterations)} updates"


SITUATIONS = (
    single_device,
    steps_per_execution,
    gradient_accumulation,
    asynchronous_callbacks,
    queue_options,
    sequential_stages,
    functional_stages,
    existing_model,
    ported,
    saving,
    data_parallelism,
)

if __name__ == "__main__":
    configure(8)  # virtual devices must be created before anything else uses JAX
    chosen = [argument for argument in sys.argv[1:] if argument != "--small"]
    for situation in SITUATIONS:
        if not chosen or situation.__name__ in chosen:
            print(f"{situation.__name__}: {situation()}")
