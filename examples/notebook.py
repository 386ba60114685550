"""A notebook in cells: a plan, a schedule, a run and its statistics, each shown as it is.

Jupyter (with Jupytext), VS Code and Spyder run the cells one by one; plain Python prints them.
"""

# %% The imports
import millrace  # isort: skip - first: it makes JAX the backend of Keras

import tempfile

import keras
import numpy as np

from millrace.run.schedules.table import make_schedule

try:
    from IPython.display import display  # in a notebook, the last line of a cell needs none
except ImportError:
    display = print

random = np.random.default_rng(0)
x = random.standard_normal((1_024, 64), dtype="float32")
y = random.integers(0, 10, len(x)).astype("int32")

# %% The cell that builds the model: run it again for a new one.
strategy = millrace.Strategy(devices="cpu:2", report_dir=tempfile.mkdtemp(prefix="millrace-"))
keras.utils.set_random_seed(0)
keras.backend.clear_session()  # or the layers of the second model are called dense_3 and on
with strategy.scope():
    hidden = [keras.layers.Dense(256, "relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)], name="mlp")
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("sgd", loss, steps_per_execution=16)

# %% What would train it fastest within the memory?
display(strategy.plan(model, (x[:256], y[:256]), memory="1GB"))

# %% Two stages, in the order of a schedule
display(make_schedule("1f1b", num_stages=2, num_micro_batches=4, groups=(0, 1)))
model.set_pipeline_stage_assignment([0, 0, 1])
model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
model.fit(x, y, batch_size=32, epochs=5, verbose=0)
display(strategy.statistics())

# %% The run so far: what limited it, its tasks, memory and operations
run = strategy.records()
display(run)
display(run.trace)
display(run.epochs)
