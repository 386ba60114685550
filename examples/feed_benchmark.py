"""Does this data set keep up with this model? How fast is it alone, and through the infeed?"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import json
import sys
import time

import keras
import numpy as np

BATCH, SIDE = 32, 32
EPOCHS, STEPS = (2, 10) if "--small" in sys.argv else (3, 100)


def photos(seconds=0.005):
    """Endless batches that take 5 ms each to load."""
    random = np.random.default_rng(0)
    images = random.random((BATCH, SIDE, SIDE, 3), dtype="float32")
    labels = random.integers(0, 10, BATCH)
    while True:
        time.sleep(seconds)  # as a disk or a network would
        yield images, labels


def cached_photos():
    """The same batches, from memory."""
    return photos(seconds=0)


def wait_seconds(dataset):
    """Trains a model, prints what its time went to, and returns how long it waited for data."""
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        classifier = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 3)),
                keras.layers.Flatten(),
                keras.layers.Dense(128, "relu"),
                keras.layers.Dense(10, "softmax"),
            ]
        )
    classifier.compile("adam", "sparse_categorical_crossentropy", steps_per_execution=10)
    classifier.fit(cached_photos(), steps_per_epoch=10, verbose=0)  # compiles
    before = strategy.statistics().infeed.wait_seconds
    classifier.fit(dataset(), steps_per_epoch=STEPS, epochs=EPOCHS, verbose=0)
    statistics = strategy.statistics()
    print(f"\n{dataset.__name__}:\n{statistics}")
    return statistics.infeed.wait_seconds - before


if __name__ == "__main__":
    for name, benchmark in {
        "data set": millrace.dataset_benchmark,
        "infeed": millrace.infeed_benchmark,
    }.items():
        report = json.loads(benchmark(photos, EPOCHS, STEPS, print_stats=False))
        last = report["epochs"][-1]
        print(
            f"{name:<9} {last['elements_per_second']:7.1f} batches/s, "
            f"{last['bandwidth']:.4f} GB/s, first after {report['first_element_seconds']:.3f} s"
        )
    if wait_seconds(photos) < wait_seconds(cached_photos):
        sys.exit("training should wait longer for photos that are slow to load")
