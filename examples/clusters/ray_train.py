"""A training in two workers of Ray Train, which starts again after a failure.

    python ray_train.py --checkpoints /shared/checkpoints --epochs 100

Each worker calls `main` of train.py, which connects them. Ray copies this directory to its
machines. Arguments that this script does not know go to train.py.
"""

import argparse
import pathlib
import sys
import tempfile

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxTrainer

HERE = pathlib.Path(__file__).resolve().parent


def worker(config: dict[str, list[str]]) -> None:
    """Trains, in each of the workers."""
    import train  # train.py, here: the process that runs main() has no use for JAX

    train.main(config["arguments"])


def main() -> None:
    """Starts the workers, and waits for them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=3, help="after failures of a worker")
    parser.add_argument("--checkpoints", required=True, help="where all machines see it")
    options, others = parser.parse_known_args()
    arguments = ["--checkpoints", str(pathlib.Path(options.checkpoints).resolve()), *others]

    ray.init(runtime_env={"working_dir": str(HERE)})
    with tempfile.TemporaryDirectory() as directory:
        trainer = JaxTrainer(
            worker,
            train_loop_config={"arguments": arguments},
            # On GPUs or TPUs: use_gpu=True or use_tpu=True, and the resources of each worker.
            scaling_config=ScalingConfig(num_workers=options.workers),
            run_config=RunConfig(
                storage_path=directory,  # of what Ray itself writes; with machines, a shared one
                failure_config=FailureConfig(max_failures=options.restarts),
            ),
        )
        trainer.fit()


if __name__ == "__main__":
    sys.exit(main())
