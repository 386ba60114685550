"""A run of two stages leaves its records and a page; the records are read, and asked five things.

`python examples/report.py DIRECTORY` keeps them there; the default is a temporary directory.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import sys
import tempfile

import keras
import numpy as np

arguments = [word for word in sys.argv[1:] if word != "--small"]
directory = arguments[0] if arguments else tempfile.mkdtemp(prefix="millrace-report-")
EPOCHS = 2 if "--small" in sys.argv else 20
MICRO_BATCH, ACCUMULATION = 32, 4

strategy = millrace.Strategy(devices="cpu:2", report_dir=directory)
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, "relu", name="first"),
            keras.layers.Dense(256, "relu", name="second"),
            keras.layers.Dense(10, "softmax", name="digits"),
        ],
        name="mlp",
    )
    model.set_pipeline_stage_assignment([0, 1, 1])  # of each layer
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=ACCUMULATION)
model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=2 * ACCUMULATION)
random = np.random.default_rng(0)
x = random.standard_normal((1_024, 64), dtype="float32")
y = random.integers(0, 10, len(x)).astype("int32")
model.fit(x, y, batch_size=MICRO_BATCH, epochs=EPOCHS, verbose=0)

# Any program can do this, also during the run or after it was killed.
run = millrace.records.load(directory)
loop = run.loops[-1]
print(f"loop       {loop.mode} of {loop.model!r} on {loop.stages} stages, {loop.steps} steps")
print(f"bubble     {run.timeline.bubble:.0%} of an update of {1e3 * run.timeline.end:.2f} ms")
memory = run.memory["train"]  # of the program that needs the most
tensors = [tensor for tensor in memory.peak.tensors if tensor.layer]
print(f"memory     {memory.peak.bytes:,} bytes at the peak of {memory.program}")
print(f"tensor     the largest one of a layer belongs to {tensors[0].layer!r}")
print(f"compiled   {sum(each.is_executable for each in run.compilations)} executables")
print(f"\nThe page is written at the end: open {directory}/report.html")

if (loop.model, loop.stages, loop.outcome) != ("mlp", 2, "finished") or not run.timeline.spans:
    sys.exit("the records should have the run")
