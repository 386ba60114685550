"""A loop of one's own that runs as replicas of two processes is saved, killed, and goes on."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MILLRACE = "from millrace.tools.cli.main import main; main()"
SCRIPT = """
import os, signal, sys
import millrace
millrace.distributed.initialize()
import jax, keras, numpy as np
from millrace.api.own_loops.replication import cross_replica_mean, replication_index
from millrace_ipu.optimizers.cross_replica import CrossReplicaOptimizer

directory, last, killed = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "killed"
keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dropout(0.5),
    keras.layers.Dense(4),
])
optimizer = CrossReplicaOptimizer(keras.optimizers.Adam(0.01))
own = keras.Variable(np.zeros(2, np.float32))  # differs between replicas
random = np.random.default_rng(0)
rows = [tuple(random.normal(size=(16, n)).astype("float32") for n in (8, 4)) for _ in range(80)]

def body(x, y):
    weights = model.trainable_variables
    loss, gradients = millrace.value_and_grad(
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
    import json, zlib
    held = [*model.variables, *optimizer.variables]
    crc = [zlib.crc32(np.ascontiguousarray(keras.ops.convert_to_numpy(v))) for v in held]
    print("RESULT", json.dumps([step, values, crc]))
"""


def launch(tmp_path, *arguments, restarts=0):
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT)
    options = ["--processes", "2", "--devices-per-process", "1", "--restarts", str(restarts)]
    done = subprocess.run(
        [sys.executable, "-c", MILLRACE, "launch", *options, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "MILLRACE_CACHE_DIR": "off"},
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    (line,) = [each for each in output.splitlines() if each.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT")), output


def test_a_killed_loop_goes_on_with_the_same_bits(tmp_path):
    whole, _ = launch(tmp_path, tmp_path / "whole", 20, "whole")
    broken, output = launch(tmp_path, tmp_path / "broken", 20, "killed", restarts=1)
    assert "restart 1 of 1" in output
    assert broken == whole
    assert whole[0] == 20
    again, _ = launch(tmp_path, tmp_path / "broken", 20, "whole")
    assert again == whole
