"""A Keras program for the IPU, a pipeline in two stages; only its two imports have changed.

    from tensorflow.python import ipu    ->    from millrace_ipu import ipu
    import tensorflow as tf              ->    from millrace_ipu import tensorflow as tf

The rest is as it was written for TensorFlow.
"""

import numpy as np

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf

config = ipu.config.IPUConfig()
config.auto_select_ipus = 2  # two virtual devices of the CPU
config.configure_ipu_system()

tf.keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(1024, 8)).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1))).batch(16, drop_remainder=True)

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(64, "tanh"), tf.keras.layers.Dense(1)])
    model.set_pipeline_stage_assignment([0, 1])  # of each layer
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=4,
        pipeline_schedule=ipu.ops.pipelining_ops.PipelineSchedule.Interleaved,
    )
    model.compile(optimizer="adam", loss="mse", steps_per_execution=64)
    history = model.fit(dataset, epochs=3, verbose=0)
print("losses:", *(f"{loss:.4f}" for loss in history.history["loss"]))
