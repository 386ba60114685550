"""Inspect gradients and activations while a small classifier of digits trains.

After each epoch, callbacks print the values that left the program: gradients of one layer at every
weight update, activations at every batch. Choose among four models:

    cd millrace-ipu/examples
    python mnist_inspection.py                              Sequential, two stages
    python mnist_inspection.py --model-type Model           Functional, two stages
    python mnist_inspection.py --no-pipelining              Sequential, one device
    python mnist_inspection.py --model-type Model --no-pipelining

The second callback belongs to the queue that the model does not use, and says so. The activations
stay unread, and the program does not wait; a third callback reads them with `--read-activations`.
"""

from millrace_ipu import ipu  # isort: skip - first: it makes JAX the backend of Keras

import argparse

import numpy as np

from millrace_ipu import tensorflow as tf
from millrace_ipu.ipu.outfeed_callback import OutfeedCallback
from millrace_ipu.ipu.outfeed_layers import MaybeOutfeed, Outfeed
from millrace_ipu.ipu.outfeed_optimizer import OutfeedOptimizer, OutfeedOptimizerMode
from millrace_ipu.ipu.outfeed_wrapper import MaybeOutfeedQueue

keras = tf.keras
ROWS, ACCUMULATION = 32, 4

if tf.__version__[0] != "2":
    raise ImportError("this program is written for TensorFlow 2")


def read_digits(path, rows):
    """Images of 28 x 28 and their digits: from a local `mnist.npz`, or random."""
    if path:
        with np.load(path) as file:
            return file["x_train"], file["y_train"]
    random = np.random.default_rng(0)
    digits = random.integers(0, 10, rows)
    pictures = random.integers(0, 256, (10, 28, 28))
    noise = random.integers(0, 64, (256, 28, 28))
    return (3 * pictures[digits] + noise[np.arange(rows) % 256]) // 4, digits


def create_dataset(path, batches):
    images, digits = read_digits(path, batches * ROWS)
    images = (images / 255.0)[..., tf.newaxis]
    dataset = tf.data.Dataset.from_tensor_slices((images, digits))
    dataset = dataset.shuffle(len(images)).batch(ROWS, drop_remainder=True)
    return dataset.map(lambda x, y: (tf.cast(x, tf.float32), tf.cast(y, tf.float32)))


def dense(units, activation="relu"):
    return keras.layers.Dense(units, activation=activation, name=f"Dense_{units}")


def create_model(queue, accumulation):
    inputs = keras.layers.Input(shape=(28, 28, 1), dtype=tf.float32, batch_size=ROWS)
    x = keras.layers.Flatten()(inputs)
    x = Outfeed(queue, name="Dense_128_acts")(dense(128)(x))
    model = keras.Model(inputs, dense(10, "softmax")(x))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def create_pipeline_model(queue, accumulation):
    inputs = keras.layers.Input(shape=(28, 28, 1), dtype=tf.float32, batch_size=ROWS)
    with ipu.keras.PipelineStage(0):
        x = dense(256)(keras.layers.Flatten()(inputs))
    with ipu.keras.PipelineStage(1):
        x = dense(128)(x)
        x = MaybeOutfeed(queue, final_outfeed=False, name="Dense_128_acts")(x)
        x = dense(10, "softmax")(x)
        x = MaybeOutfeed(queue, final_outfeed=True, name="Dense_10_acts")(x)
    model = keras.Model(inputs, x)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def create_sequential_model(queue, accumulation):
    hidden = [keras.layers.Flatten(), dense(128), Outfeed(queue, name="Dense_128_acts")]
    model = keras.Sequential([*hidden, dense(10, "softmax")])
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def create_pipeline_sequential_model(queue, accumulation):
    model = keras.Sequential(
        [
            keras.layers.Flatten(),
            dense(256),
            dense(128),
            MaybeOutfeed(queue, final_outfeed=False, name="Dense_128_acts"),
            dense(10, "softmax"),
            MaybeOutfeed(queue, final_outfeed=True, name="Dense_10_acts"),
        ]
    )
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
    model.set_pipeline_stage_assignment([0, 0, 1, 1, 1, 1])
    return model


MODELS = {  # by type, and whether it is pipelined
    ("Model", False): create_model,
    ("Model", True): create_pipeline_model,
    ("Sequential", False): create_sequential_model,
    ("Sequential", True): create_pipeline_sequential_model,
}


def process_filters(given):
    """Returns None, that is no filter, if the only filter is the word none."""
    return None if len(given) == 1 and given[0].lower() == "none" else given


def train(options):
    pipelined = not options.no_pipelining
    accumulation = 1 if options.no_gradient_accumulation and not pipelined else ACCUMULATION
    if (options.model_type, pipelined) not in MODELS:
        raise ValueError(f"{options.model_type!r} is no proper model type: Sequential or Model")

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2 if pipelined else 1
    config.configure_ipu_system()

    with ipu.ipu_strategy.IPUStrategy().scope():
        gradients = MaybeOutfeedQueue(filters=process_filters(options.gradients_filters))
        one_layer = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
        more_layers = MaybeOutfeedQueue(filters=process_filters(options.activations_filters))
        unused, used = (
            OutfeedCallback(one_layer, name="Single layer activations callback"),
            OutfeedCallback(more_layers, name="Multi-layer activations callback"),
        )[:: 1 if pipelined else -1]
        callbacks = [OutfeedCallback(gradients, name="Gradients callback"), unused]
        if options.read_activations:
            callbacks.append(used)
        create = MODELS[options.model_type, pipelined]
        model = create(more_layers if pipelined else one_layer, accumulation)

        raw = options.outfeed_pre_accumulated_gradients
        mode = OutfeedOptimizerMode.AFTER_COMPUTE if raw else OutfeedOptimizerMode.BEFORE_APPLY
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(),
            optimizer=OutfeedOptimizer(
                keras.optimizers.SGD(), gradients, outfeed_optimizer_mode=mode, model=model
            ),
            steps_per_execution=options.steps_per_epoch,
        )
        model.fit(
            create_dataset(options.mnist, options.epochs * options.steps_per_epoch),
            callbacks=callbacks,
            steps_per_epoch=options.steps_per_epoch,
            epochs=options.epochs,
            verbose=2,
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-type", default="Sequential", help="Sequential or Model")
    parser.add_argument("--no-pipelining", action="store_true", help="one device")
    parser.add_argument(
        "--no-gradient-accumulation", action="store_true", help="an update for each batch"
    )
    parser.add_argument(
        "--outfeed-pre-accumulated-gradients",
        action="store_true",
        help="gradients of every batch, not of every update",
    )
    parser.add_argument("--read-activations", action="store_true", help="print them too")
    parser.add_argument("--steps-per-epoch", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--gradients-filters", nargs="*", default=["Dense_128"])
    parser.add_argument("--activations-filters", nargs="*", default=["none"])
    parser.add_argument(
        "--mnist", metavar="PATH", help="a local mnist.npz; otherwise random digits"
    )
    parser.add_argument("--small", action="store_true", help="20 steps, for a quick run")
    options = parser.parse_args(arguments)
    if options.small:
        options.steps_per_epoch = 20
    train(options)


if __name__ == "__main__":
    main()
