"""A pipeline of two stages that continues from its newest checkpoint: for the other files here.

python train.py --checkpoints checkpoints               alone, on two virtual devices
millrace launch --processes 2 train.py                  a stage in each process
sbatch slurm.sh train.py --checkpoints checkpoints
./mpi.sh train.py
python ray_train.py --checkpoints /shared/checkpoints
"""

import argparse
import os
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Trains, and returns the loss of each epoch that this run has trained."""
    # Not at the top of the file: ray_train.py calls this in a worker, and JAX starts here.
    import millrace  # isort: skip
    import jax
    import keras
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", default="checkpoints", help="where all processes see it")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=20_000)
    options = parser.parse_args(arguments)

    millrace.distributed.initialize()
    strategy = millrace.Strategy(devices=None if jax.distributed.is_initialized() else "cpu:2")
    who = f"process {jax.process_index()} of {jax.process_count()} (pid {os.getpid()})"

    keras.utils.set_random_seed(0)  # in all processes, and in all runs
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((32,)),
                keras.layers.Dense(64, "tanh"),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(64, "tanh"),
                keras.layers.Dense(1),
            ]
        )
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=16)
    model.compile("adam", "mse", steps_per_execution=32)

    x = np.random.default_rng(0).standard_normal((options.rows, 32), dtype="float32")
    y = np.sin(x.sum(axis=1, keepdims=True))

    def tell(epoch: int, logs: dict[str, float]) -> None:
        print(f"{who}: epoch {epoch}: loss {logs['loss']:.7f}", flush=True)

    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=options.epochs,
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=tell),
            millrace.callbacks.Checkpoint(options.checkpoints),
        ],
    )
    print(f"{who}: done", flush=True)
    return history.history["loss"]


if __name__ == "__main__":
    main()
