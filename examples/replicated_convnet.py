"""A residual network for small pictures, replicated over the devices of one or two processes.

    python examples/replicated_convnet.py                                two devices of one process
    millrace launch --processes 2 examples/replicated_convnet.py         one device of each process

As published image classifiers do: residual blocks of bottleneck form, normalization in groups
(which needs no statistics of other replicas), pictures that are flipped and shifted while they are
loaded, label smoothing, momentum, weight decay, a learning rate that warms up and then falls, and
several micro-batches for each update. The pictures are synthetic: one pattern per class, and noise.

Every process reads the same pictures, and trains on those of its replica. The losses of all epochs,
and the accuracy on new pictures, are checked against plain Keras on one device.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import math
import sys
import time

import jax
import keras
import numpy as np

millrace.distributed.initialize()  # without other processes it does nothing
strategy = millrace.Strategy(devices=None if jax.distributed.is_initialized() else "cpu:2")

SMALL = "--small" in sys.argv
CLASSES, SIZE = 10, 16
PICTURES, EPOCHS, WIDTHS = (256, 2, (8,)) if SMALL else (2_048, 6, (16, 32, 64))
MICRO_BATCH, UPDATE = 16, 8  # pictures; micro-batches in an update, of all replicas
REPLICAS = len(strategy.devices)
STEPS = PICTURES // MICRO_BATCH  # micro-batches in an epoch


def make_pictures(count, seed):
    """Returns pictures, `[count, SIZE, SIZE, 3]`, and their classes, one-hot."""
    patterns = np.random.default_rng(0).standard_normal((CLASSES, SIZE, SIZE, 3))
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, count)
    pictures = 0.5 * patterns[labels] + random.standard_normal((count, SIZE, SIZE, 3))
    return pictures.astype("float32"), np.eye(CLASSES, dtype="float32")[labels]


class Augmented(keras.utils.PyDataset):
    """Micro-batches of pictures, each flipped and shifted at random.

    The random numbers depend on epoch and batch alone, so that all processes get the same ones.
    """

    def __init__(self, pictures, labels):
        super().__init__()
        self.pictures, self.labels, self.epoch = pictures, labels, 0

    def __len__(self):
        return len(self.pictures) // MICRO_BATCH

    def __getitem__(self, index):
        random = np.random.default_rng((self.epoch, index))
        rows = slice(index * MICRO_BATCH, (index + 1) * MICRO_BATCH)
        flips, shifts = random.random(MICRO_BATCH) < 0.5, random.integers(-2, 3, (MICRO_BATCH, 2))
        changed = [
            np.roll(picture[:, ::-1] if flip else picture, shift, axis=(0, 1))
            for picture, flip, shift in zip(self.pictures[rows], flips, shifts, strict=True)
        ]
        return np.stack(changed), self.labels[rows]

    def on_epoch_end(self):
        self.epoch += 1


def block(x, width, stride):
    """Adds a residual block of bottleneck form: 1 x 1, 3 x 3 and 1 x 1."""
    shortcut = x
    if stride > 1 or x.shape[-1] != 4 * width:
        shortcut = keras.layers.Conv2D(4 * width, 1, stride, use_bias=False)(x)
        shortcut = keras.layers.GroupNormalization(4)(shortcut)
    for filters, kernel, step in ((width, 1, 1), (width, 3, stride)):
        x = keras.layers.Conv2D(filters, kernel, step, padding="same", use_bias=False)(x)
        x = keras.layers.GroupNormalization(4)(x)
        x = keras.layers.Activation("relu")(x)
    x = keras.layers.Conv2D(4 * width, 1, use_bias=False)(x)
    x = keras.layers.GroupNormalization(4)(x)
    return keras.layers.Activation("relu")(keras.layers.Add()([x, shortcut]))


def build():
    """Returns the network, with the same weights in every process and at every call."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIZE, SIZE, 3))
    x = keras.layers.Conv2D(WIDTHS[0], 3, padding="same", activation="relu")(inputs)
    for stage, width in enumerate(WIDTHS):
        x = block(x, width, stride=1 if stage == 0 else 2)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(x))


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """Rises to `peak` in a tenth of all updates, and falls to zero as half a cosine wave.

    `steps` of an update: Keras's own accumulation counts micro-batches, a strategy counts updates.
    """

    def __init__(self, peak, updates, steps):
        self.peak, self.updates, self.steps = peak, updates, steps

    def __call__(self, step):
        step, rise = keras.ops.cast(step // self.steps, "float32"), max(self.updates // 10, 1)
        fall = keras.ops.cos(math.pi * keras.ops.clip(step / self.updates, 0.0, 1.0)) + 1
        return self.peak * keras.ops.minimum((step + 1) / rise, fall / 2)

    def get_config(self):
        return {"peak": self.peak, "updates": self.updates, "steps": self.steps}


def train(model, data, **accumulation):
    """Returns the loss of each epoch, and the seconds of the last one."""
    steps = accumulation.get("gradient_accumulation_steps", 1)
    schedule = WarmUp(0.05, EPOCHS * STEPS // UPDATE, steps)
    model.compile(
        optimizer=keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=1e-4, **accumulation),
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        metrics=["accuracy"],
        steps_per_execution=STEPS,
    )
    history = model.fit(Augmented(*data), epochs=EPOCHS - 1, shuffle=False, verbose=0).history
    begin = time.perf_counter()
    last = Augmented(*data)
    last.epoch = EPOCHS - 1
    more = model.fit(last, shuffle=False, verbose=0).history
    return history["loss"] + more["loss"], time.perf_counter() - begin


def main():
    """Trains replicas and plain Keras, and compares them."""
    data, new = make_pictures(PICTURES, seed=1), make_pictures(PICTURES // 4, seed=2)
    with strategy.scope():
        model = build()
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=UPDATE // REPLICAS
        )
    losses, seconds = train(model, data)
    accuracy = model.evaluate(*new, batch_size=MICRO_BATCH, verbose=0, return_dict=True)["accuracy"]

    plain = build()  # outside of the scope: plain Keras, on one device of each process
    expected, alone = train(plain, data, gradient_accumulation_steps=UPDATE)
    usual = plain.evaluate(*new, batch_size=MICRO_BATCH, verbose=0, return_dict=True)["accuracy"]

    places = ", ".join(
        f"device {each.id} of process {each.process_index}" for each in strategy.devices
    )
    print(f"process {jax.process_index()} of {jax.process_count()}: replicas on {places}")
    print(f"{model.count_params():,} weights, {len(model.layers)} layers")
    for epoch, (loss, other) in enumerate(zip(losses, expected, strict=True)):
        print(f"epoch {epoch}: loss {loss:.7f}, plain Keras {other:.7f}")
    print(f"accuracy on new pictures: {accuracy:.3f}, plain Keras {usual:.3f}")
    print(f"last epoch: {PICTURES / seconds:,.0f} pictures/s, plain Keras {PICTURES / alone:,.0f}")

    if not np.allclose(losses, expected, rtol=1e-5, atol=0):
        sys.exit("the losses should agree to 1e-5")
    if abs(accuracy - usual) > 2 / len(new[0]):
        sys.exit("the accuracies should differ by two pictures at most")
    if losses[-1] >= losses[0]:
        sys.exit("the loss should fall")


main()
