"""A run of two stages leaves its records and a page; the records are read, and asked four things.

`python examples/report.py DIRECTORY` keeps them there; the default is a temporary directory.
"""

import sys
import tempfile

import millrace  # before Keras: it makes JAX the backend
import keras
import numpy as np

directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="millrace-report-")

strategy = millrace.Strategy(devices="cpu:2", report_dir=directory)
with strategy.scope():
    hidden = [keras.layers.Dense(256, "relu", name=name) for name in ("first", "second")]
    layers = [keras.Input((64,)), *hidden, keras.layers.Dense(1, name="out")]
    model = keras.Sequential(layers, name="mlp")
model.set_pipeline_stage_assignment([0, 1, 1])  # of each layer
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
model.compile("sgd", "mse", steps_per_execution=8)
x = np.random.default_rng(0).normal(size=(1024, 64)).astype("float32")
statistics = millrace.callbacks.TensorStatistics(gradients="*/kernel")  # for its Tensors tab
model.fit(x, np.sin(x.sum(axis=1)), epochs=4, verbose=2, callbacks=[statistics])

# Any program can do this, also during the run. The page is written at the end: report.html.
run = millrace.records.load(directory)
loop, memory = run.loops[-1], run.memory["train"]  # of the program that needs the most
print(f"{loop.mode} of {loop.model} on {loop.stages} stages, {loop.steps} steps: {loop.outcome}")
print(f"bubble: {run.timeline.bubble:.0%} of an update of {1e3 * run.timeline.end:.2f} ms")
print(f"memory: {memory.peak.bytes:,} bytes at the peak of {memory.program}")
print(f"compiled: {sum(each.is_executable for each in run.compilations)} executables")
