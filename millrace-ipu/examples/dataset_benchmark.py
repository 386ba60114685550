"""The speed at which the host supplies a data set, as the JSON of `dataset_benchmark`."""

from millrace_ipu import ipu  # isort: skip - first: it makes JAX the backend of Keras

import json
import sys

import numpy as np

from millrace_ipu import tensorflow as tf

EPOCHS, ELEMENTS = (2, 32) if "--small" in sys.argv else (10, 512)

images = np.random.default_rng(0).random((64, 28, 28), np.float32)
dataset = tf.data.Dataset.from_tensor_slices(images).batch(32, drop_remainder=True).repeat()
result = ipu.dataset_benchmark.dataset_benchmark(dataset, EPOCHS, ELEMENTS)

for number, epoch in enumerate(json.loads(result[0])["epochs"]):
    print(f"epoch {number}: " + ", ".join(f"{name} {value:.4g}" for name, value in epoch.items()))
