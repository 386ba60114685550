"""How fast is a data set alone, and through the infeed?"""

import json
import time

import millrace  # before Keras: it makes JAX the backend
import numpy as np

images = np.random.default_rng(0).random((32, 64, 64, 3), dtype="float32")
labels = np.arange(32) % 10


def photos():
    while True:
        time.sleep(0.005)  # as a disk or a network would
        yield images, labels


for name, benchmark in {
    "data set": millrace.dataset_benchmark,
    "infeed": millrace.infeed_benchmark,
}.items():
    report = json.loads(
        benchmark(photos, number_of_epochs=2, elements_per_epochs=50, print_stats=False)
    )
    last = report["epochs"][-1]
    print(
        f"{name}: {last['elements_per_second']:.1f} batches/s, {last['bandwidth']:.3f} GB/s, "
        f"first after {report['first_element_seconds']:.3f} s"
    )
