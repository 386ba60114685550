"""Replicas of functions over one process or several: what every process finds, as digests.

`millrace launch --processes P --devices-per-process D replica_script.py directory`
"""

import hashlib
import pathlib
import sys

import millrace

millrace.distributed.initialize()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

from millrace.api.own_loops.replication import (  # noqa: E402
    cross_replica_mean,
    cross_replica_sum,
    current_group,
    replication_index,
)
from millrace.errors import DataError  # noqa: E402
from millrace_ipu import ipu  # noqa: E402
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer  # noqa: E402

COUNT = len(jax.devices())


def elements(count):
    random = np.random.default_rng(0)
    return [
        (
            random.normal(size=(16, 8)).astype("float32"),
            random.normal(size=(16, 4)).astype("float32"),
        )
        for _ in range(count)
    ]


def numbers(count):
    return [np.float32(i) for i in range(count)]


def training(wrap):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "tanh"), layers.Dropout(0.5), layers.Dense(4)]
    )
    optimizer, losses = wrap(keras.optimizers.Adam(0.01)), millrace.OutfeedQueue()
    kept = keras.Variable(np.float32(0))

    def body(x, y):
        weights = model.trainable_variables
        loss, gradients = millrace.value_and_grad(
            lambda: keras.ops.mean((model(x, training=True) - y) ** 2), weights
        )
        optimizer.apply(gradients, weights)
        losses.enqueue({"loss": loss, "is large": loss > 1})

    def train(n):
        millrace.repeat(n, body, infeed=infeed)
        kept.assign(-0.0 * replication_index())
        return cross_replica_mean(model.trainable_variables[0].value), replication_index()

    train = millrace.compile(train, replicas=COUNT)
    with millrace.InfeedQueue(elements(20 * COUNT)) as infeed:
        results = [train(n) for n in (5, 3, 7)]
    state = [v.value for v in (*model.variables, *optimizer.variables, kept)]
    return results, losses.dequeue(), state


def loops():
    total, queue = keras.Variable(np.float32(1)), millrace.OutfeedQueue()
    nested = millrace.OutfeedQueue("last")

    def inner(n, x):
        nested.enqueue((x, replication_index()))
        return n + x

    def body(n, x):
        total.assign_add(x * (1 + replication_index()))
        queue.enqueue(total.value)
        return millrace.repeat(2, inner, n + cross_replica_sum(x), others)

    def f():
        count = millrace.while_loop(lambda n: n < 9.0 + replication_index(), body, 0.0, infeed)
        different = keras.ops.cond(
            replication_index() > 0, lambda: cross_replica_sum(total.value), lambda: total.value
        )
        return count, cross_replica_sum(different), jax.random.normal(jax.random.key(0), (3,))

    f = millrace.compile(f, replicas=COUNT)
    with millrace.InfeedQueue(numbers(30)) as infeed, millrace.InfeedQueue(numbers(60)) as others:
        return f(), f(), queue.dequeue(), nested.dequeue(), total.value


def end_of_data():
    queue = millrace.OutfeedQueue()
    f = millrace.compile(lambda: millrace.repeat(99, queue.enqueue, infeed=infeed), replicas=COUNT)
    with millrace.InfeedQueue(numbers(4 * COUNT + 1)) as infeed:
        try:
            f()
        except DataError as error:
            text = str(error).partition(", and")[0]
    return np.frombuffer(text.encode(), np.uint8), queue.dequeue()


def strategy_run():
    strategy, queue = ipu.ipu_strategy.IPUStrategy(), ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    weight = keras.Variable(np.float32(10))
    optimizer = ipu.optimizers.CrossReplicaOptimizer(keras.optimizers.SGD(1.0))

    @millrace.compile
    def net():
        def body():
            optimizer.apply_gradients([(1.0 + replication_index(), weight)])
            queue.enqueue(weight.value)

        ipu.loops.repeat(3, body)
        return jnp.int32(current_group() is not None)

    return strategy.run(net), queue.dequeue(), weight.value


def pipeline():
    keras.utils.set_random_seed(0)
    encoder, decoder = keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)
    optimizer, queue = keras.optimizers.Adam(0.01), millrace.OutfeedQueue()

    def last(h, y):
        return keras.ops.mean((decoder(h) - y) ** 2), replication_index()

    with millrace.Strategy().scope(), millrace.InfeedQueue(elements(12 * COUNT)) as infeed:
        millrace.pipeline(
            [lambda x, y: (encoder(x), y), last],
            4,
            updates=2,
            infeed=infeed,
            outfeed=queue,
            optimizer_function=lambda loss, index: (optimizer, loss),
        )
    return queue.dequeue(), [v.value for v in (*encoder.variables, *decoder.variables)]


def digest(tree):
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    shapes = ",".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
    data = b"".join(leaf.tobytes() for leaf in leaves)
    return hashlib.sha256(shapes.encode() + data).hexdigest()


config = ipu.config.IPUConfig()
config.auto_select_ipus = COUNT
config.configure_ipu_system()
CASES = {
    "exchange": lambda: training(CrossReplicaOptimizer),
    "no exchange": lambda: training(lambda optimizer: optimizer),
    "loops": loops,
    "end of data": end_of_data,
    "strategy.run": strategy_run,
    "pipeline": pipeline,
}
lines = [f"{name}: {digest(case())}" for name, case in CASES.items()]
path = pathlib.Path(sys.argv[1]) / f"{jax.process_count()}-{jax.process_index()}.txt"
path.write_text("\n".join(lines))
