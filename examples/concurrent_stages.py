"""A shorter pipeline through stages that work at the same time on the same micro-batch.

    serial        s0 -> s1a -> s1b -> s2      four devices
    concurrent    s0 -> [s1a, s1b] -> s2      the same four devices, a shorter warm-up

Each task takes a slot of fixed time here, in the order of its device's row: besides computing, it
waits for the clock. So the measured time depends only on the order of tasks, on any machine, and
is compared with the prediction of `simulate`.
"""

import millrace  # isort: skip - first: it makes JAX the backend of Keras

import pathlib
import sys
import time

import jax
import keras
import numpy as np
from keras import ops

from millrace.run.schedules.simulate import simulate
from millrace.run.schedules.table import make_schedule
from millrace.run.schedules.task import Pass

sys.path.append(str(pathlib.Path(__file__).parent.parent / "benchmarks"))
from slots import SlotDevice, slot

jax.config.update("jax_num_cpu_devices", 32)  # a thread for each
strategy = millrace.Strategy(devices=4)

FORWARD, BACKWARD = 0.05, 0.1  # seconds of a slot
MICRO_BATCHES = 8
UPDATES = 2 if "--small" in sys.argv else 5
SIZE = 64

layers = [keras.layers.Dense(SIZE, "tanh") for _ in range(4)]
for layer in layers:
    layer.build((None, SIZE))
start = [layer.get_weights() for layer in layers]
devices = []  # slots of the stages' devices


def first(x, y):
    return slot(layers[0](x), devices[0]), y


def left(h, y):
    return slot(layers[1](h), devices[1])


def right(h, y):
    return slot(layers[2](h), devices[2]), y


def last(a, b, y):
    return ops.mean((slot(layers[3](a * b), devices[3]) - y) ** 2)


# The serial form: a stage also passes on values that only later stages need. Without the barrier,
# these would go there directly, and here, too, the middle stages would not wait for each other.
def second(h, y):
    return *jax.lax.optimization_barrier((left(h, y), h)), y


def third(a, h, y):
    return a, *right(h, y)


def train(stages, device_mapping, schedule):
    """Returns the losses, and the seconds of the fastest update after the first."""
    devices[:] = [SlotDevice(row, FORWARD, BACKWARD) for row in schedule]
    for layer, values in zip(layers, start, strict=True):
        layer.set_weights(values)
    rows = np.random.default_rng(0).normal(size=(2, MICRO_BATCHES, SIZE, SIZE)).astype("float32")
    infeed = millrace.InfeedQueue(list(zip(*rows, strict=True)) * (UPDATES + 1))
    outfeed, optimizer = millrace.OutfeedQueue(), keras.optimizers.SGD(0.1)
    seconds = []
    with strategy.scope():
        for _ in range(UPDATES + 1):
            begin = time.perf_counter()
            millrace.pipeline(
                stages,
                MICRO_BATCHES,
                device_mapping=device_mapping,
                infeed=infeed,
                outfeed=outfeed,
                optimizer_function=lambda loss: (optimizer, loss),
            )
            jax.block_until_ready([layer.kernel.value for layer in layers])
            seconds.append(time.perf_counter() - begin)
    return outfeed.dequeue()[0], min(seconds[1:])


def of_stages(number, levels=None):
    return make_schedule("1f1b", number, MICRO_BATCHES, tuple(range(number)), levels=levels)


schedules = of_stages(4), of_stages(3, levels=(0, 1, 1, 2))
slots = {Pass.FORWARD: FORWARD, Pass.BACKWARD: BACKWARD}
expected = [simulate(schedule, slots).end for schedule in schedules]
serial_losses, serial = train([first, second, third, last], [0, 1, 2, 3], schedules[0])
losses, concurrent = train([first, [left, right], last], [0, [1, 2], 3], schedules[1])
ratio, simulated = concurrent / serial, expected[1] / expected[0]
print(f"serial      {serial:.3f} s per update, simulated {expected[0]:.3f} s")
print(f"concurrent  {concurrent:.3f} s per update, simulated {expected[1]:.3f} s")
print(f"concurrent / serial = {ratio:.3f}, simulated {simulated:.3f}: {ratio / simulated - 1:+.1%}")
if not np.allclose(losses, serial_losses, rtol=1e-6):
    sys.exit("the losses should agree to 1e-6")
