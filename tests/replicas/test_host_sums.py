"""Replicas of two processes that add up through shared memory, against gloo and one device."""

import pathlib
import re
import subprocess
import sys

import pytest

MILLRACE = str(pathlib.Path(sys.executable).with_name("millrace"))
TRAIN = """
import millrace
millrace.distributed.initialize()
import os, signal, zlib, jax, keras, numpy as np
from millrace.processes import shared_memory

memory, process = shared_memory.shared_memory(), jax.process_index()
random = np.random.default_rng(0)
x = random.standard_normal((330, 300), dtype="float32")
y = random.integers(0, 10, 330, dtype="int32")

def train(devices, accumulation, callbacks=(), on_host=True):
    shared_memory._shared = memory if on_host else None
    keras.utils.set_random_seed(1)
    with millrace.Strategy(devices=devices).scope():
        layers = [keras.layers.Dense(300, "relu"), keras.layers.Dropout(0.2)]
        model = keras.Sequential([keras.Input((300,)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, 0.9)
    model.compile(optimizer, loss, metrics=["accuracy"], steps_per_execution=8)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    options = {"batch_size": 10, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, callbacks=list(callbacks), **options).history
    losses = [*history["loss"], *model.evaluate(x, y, batch_size=10, verbose=0)]
    return losses, model.get_weights()

def difference(one, other):
    pairs = zip([one[0], *one[1]], [other[0], *other[1]], strict=True)
    return max(np.max(np.abs(np.subtract(a, b))) / np.max(np.abs(b)) for a, b in pairs)
"""
COMPARE = """
before = memory._count
found = train(None, 2)
added = memory._count - before
gloo = train(None, 2, on_host=False)
assert memory._count == before + added
alone = train(jax.local_devices(), 4)
bits = zlib.crc32(b"".join(weight.tobytes() for weight in found[1]))
same, near = difference(found, gloo) == 0, difference(found, alone) < 1e-6
print("FOUND", added > 16, same, near, bits, flush=True)
"""
KILL = """
class Kill(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if process == 1:
            os.kill(os.getpid(), signal.SIGKILL)

train(None, 1, [Kill()])
"""


def launch(tmp_path, code):
    script = tmp_path / "script.py"
    script.write_text(TRAIN + code)
    command = [MILLRACE, "launch", "--processes", "2", str(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)


@pytest.mark.slow
def test_sums_are_those_of_gloo_and_of_one_device_and_equal_in_all_processes(tmp_path):
    result = launch(tmp_path, COMPARE)
    assert result.returncode == 0, result.stdout + result.stderr
    (log,) = re.findall(r"writes to (\S+)", result.stdout + result.stderr)
    outputs = [result.stdout, pathlib.Path(log).read_text()]
    found = [re.findall(r"FOUND (.*)", output) for output in outputs]
    assert found[0] == found[1]
    assert found[0][0].startswith("True True True ")


@pytest.mark.slow
def test_a_killed_process_is_named(tmp_path):
    result = launch(tmp_path, KILL)
    assert result.returncode != 0
    assert re.search(r"process 1 \(host .*\) failed first: it died", result.stdout + result.stderr)
