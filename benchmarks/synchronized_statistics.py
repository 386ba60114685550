"""Memory and time of updates whose micro-batches share the statistics of BatchNormalization.

Peer, in the same run: plain Keras with the big batch, whose losses and weights they are. The last
line has the ratios, which are the cost of the option. No memory is claimed to be saved.

    big batch      one step of all rows
    accumulated    micro-batches, each normalized by its own statistics: other numbers
    synchronized   micro-batches, normalized together
"""

import millrace  # isort: skip
import time

import keras
import numpy as np
from keras import layers

import harness

MICRO_BATCHES = 8


def block(x, width: int, stride: int = 1):
    """A residual block of two convolutions."""
    y = layers.Conv2D(width, 3, stride, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same", use_bias=False)(y))
    if stride > 1:
        x = layers.BatchNormalization()(layers.Conv2D(width, 1, stride, use_bias=False)(x))
    return layers.Activation("relu")(layers.add([x, y]))


def resnet(depth: int) -> keras.Model:
    """A ResNet for images of 32 x 32."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = layers.Activation("relu")(layers.BatchNormalization()(x))
    for number, width in enumerate((16, 32, 64)):
        for index in range(depth):
            x = block(x, width, 2 if number and not index else 1)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def measure(kind: str, depth: int, rows: int, updates: int) -> tuple[float, float, float]:
    """Returns MiB of temporary memory, seconds of an update, and the last loss."""
    random = np.random.default_rng(0)
    strategy = millrace.Strategy()
    x = random.random((rows * updates, 32, 32, 3), dtype="float32")
    y = random.integers(0, 10, rows * updates)
    steps = 1 if kind in ("keras", "big batch") else MICRO_BATCHES
    model = resnet(depth)
    if kind != "keras":
        model = strategy.attach(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, steps_per_execution=steps)
    mib = float("nan")
    if kind != "keras":
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=steps,
            synchronized_batch_statistics=kind == "synchronized",
        )
    arguments = {"batch_size": rows // steps, "shuffle": False, "verbose": 0}
    if kind != "keras":
        size = rows // steps
        mib = strategy.memory_report(model, (x[:size], y[:size])).peak / 2**20
    model.fit(x, y, **arguments)  # compiles
    begin = time.perf_counter()
    history = model.fit(x, y, **arguments)
    return mib, (time.perf_counter() - begin) / updates, history.history["loss"][-1]


def main() -> None:
    """Prints a row for each kind of training."""
    options = harness.arguments(__doc__)
    harness.header("Statistics of BatchNormalization over all micro-batches of an update")
    depth, rows, updates = (1, 32, 1) if options.small else (1, 128, 2)
    found = {}
    for kind in ("keras", "big batch", "accumulated", "synchronized"):
        found[kind] = measure(kind, depth, rows, updates)
        mib, seconds, loss = found[kind]
        print(f"{kind:14} {mib:8.1f} MiB   {seconds:7.3f} s an update   loss {loss:.6f}")
    memory = found["synchronized"][0] / found["big batch"][0]
    seconds = found["synchronized"][1] / found["keras"][1]
    print(f"synchronized, against the big batch: memory {memory:.2f}x, time {seconds:.2f}x")


if __name__ == "__main__":
    main()
