"""A loop of replicas, one in each process, that continues where it was saved.

`loop_of_two_processes.py directory last killed|whole` runs up to step `last`; "killed" kills
process 1 at step 12. The first process prints a RESULT.
"""

import json
import os
import signal
import sys
import zlib

import millrace

millrace.distributed.initialize()

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

from millrace.api.own_loops.replication import cross_replica_mean, replication_index  # noqa: E402
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer  # noqa: E402

directory, last, killed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "killed"
keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(16, "tanh"),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(4),
    ]
)
optimizer = CrossReplicaOptimizer(keras.optimizers.Adam(0.01))
own = keras.Variable(np.zeros(2, np.float32))  # differs between replicas
random = np.random.default_rng(0)
rows = [tuple(random.normal(size=(16, n)).astype("float32") for n in (8, 4)) for _ in range(80)]


def body(x, y):
    weights = model.trainable_variables
    _, gradients = millrace.value_and_grad(
        lambda: keras.ops.mean((model(x, training=True) - y) ** 2), weights
    )
    optimizer.apply(gradients, weights)
    own.assign_add(keras.ops.ones(2) * (1.0 + replication_index()))


def train(n):
    millrace.repeat(n, body, infeed=infeed)
    return cross_replica_mean(keras.ops.sum(own.value)), replication_index()


train = millrace.compile(train, replicas=2)
parts = {"model": model, "optimizer": optimizer, "own": own}
with millrace.InfeedQueue(rows) as infeed:
    values = {}
    step = millrace.restore_checkpoint(directory, infeed=infeed, values=values, **parts)
    while step < last:
        values["mean"] = float(train(4)[0])
        step += 4
        millrace.save_checkpoint(directory, step, infeed=infeed, values=values, **parts)
        if killed and step == 12 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
if jax.process_index() == 0:
    held = [*model.variables, *optimizer.variables]
    crc = [zlib.crc32(np.ascontiguousarray(keras.ops.convert_to_numpy(v))) for v in held]
    print("RESULT", json.dumps([step, values, crc]))
