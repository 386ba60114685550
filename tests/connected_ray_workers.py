"""Workers of Ray that JaxTrainer has connected before the function, as on GPUs; on CPU here."""

import os
import time

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxConfig, JaxTrainer


def worker():
    import jax

    assert jax.distributed.is_initialized()
    import millrace

    millrace.distributed.initialize()
    try:
        millrace.distributed.initialize()
    except millrace.errors.ProcessError as error:
        assert "connected already" in str(error)  # noqa: PT017
    import keras
    import numpy as np

    with millrace.Strategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((64, 4)), np.ones(64), batch_size=4, verbose=0)
    print(f"trained {jax.process_index()} of {jax.process_count()}", flush=True)
    if jax.process_index() == 1:
        os._exit(3)
    time.sleep(60)


trainer = JaxTrainer(
    worker,
    jax_config=JaxConfig(use_gpu=True),
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.path.abspath(".")),
)
ray.init()
try:
    trainer.fit()
except Exception as error:
    print("fit raises", type(error).__name__)
