"""Kinds of own loops. Each function makes one anew, as the same script does in another process.

It returns the objects to save, a dict of values, and a function that runs a few steps and returns
their losses.
"""

import functools

import jax
import keras
import numpy as np

import millrace
from millrace.api.own_loops.replication import cross_replica_mean, replication_index
from millrace_ipu.ipu.optimizers.gradient_accumulation_optimizer import AccumulatingOptimizer
from millrace_ipu.ipu.optimizers.ipu_optimizer import CrossReplicaOptimizer

STEPS = 4  # of a call
ops, layers = keras.ops, keras.layers


def batches(count=400):
    random = np.random.default_rng(0)
    x = random.normal(size=(count, 4, 3)).astype("float32")
    return list(zip(x, x.sum(axis=2, keepdims=True), strict=True))


def network(rate=0.5):
    hidden = [layers.Dense(8, "relu"), layers.Dropout(rate)]
    return keras.Sequential([keras.Input((3,)), *hidden, layers.Dense(1)])


def training_step(model, optimizer, losses):
    def step(x, y):
        weights = model.trainable_variables
        loss, gradients = millrace.value_and_grad(
            lambda: ops.mean((model(x, training=True) - y) ** 2), weights
        )
        optimizer.apply(gradients, weights)
        losses.enqueue(loss)

    return step


def trained(dataset, model=None, optimizer=None, run=None):
    """A model that is trained by `repeat` on a data set."""
    model, optimizer = model or network(), optimizer or keras.optimizers.Adam(0.01)
    infeed, losses = millrace.InfeedQueue(dataset), millrace.OutfeedQueue()
    step = training_step(model, optimizer, losses)

    def call():
        millrace.repeat(STEPS, step, infeed=infeed)
        return losses.dequeue()

    parts = {"model": model, "optimizer": optimizer, "infeed": infeed}
    return parts, {}, call if run is None else run(step, infeed, losses)


def arrays():
    return trained(batches())


def generator():
    return trained(iter(batches()))


def generator_function():
    def elements():
        random = np.random.default_rng(3)
        while True:
            x = random.normal(size=(4, 3)).astype("float32")
            yield x, x.sum(axis=1, keepdims=True)

    return trained(elements)


def shuffled_by_shared_numbers():
    def elements():
        each = batches()
        for index in np.random.permutation(len(each)):
            yield each[index]

    return trained(elements)


def noise_of_shared_numbers():
    def elements():
        while True:
            x = np.random.normal(size=(4, 3)).astype("float32")
            yield x, x.sum(axis=1, keepdims=True)

    return trained(elements)


class Counted:
    """A data set with a state of its own."""

    def __init__(self):
        self.random, self.drawn = np.random.default_rng(5), 0

    def __iter__(self):
        return self

    def __next__(self):
        self.drawn += 1
        x = self.random.normal(size=(4, 3)).astype("float32")
        return x, x.sum(axis=1, keepdims=True)

    def get_state(self):
        return {"drawn": self.drawn, "random": self.random.bit_generator.state}

    def set_state(self, state):
        self.drawn, self.random.bit_generator.state = state["drawn"], state["random"]


def own_state():
    return trained(Counted())


def of_grain():
    grain = __import__("pytest").importorskip("grain")
    each = batches()
    source = grain.MapDataset.source(each).shuffle(seed=1).repeat().to_iter_dataset()
    return trained(source)


class Passes(keras.utils.PyDataset):
    """A data set that shuffles its batches after each pass."""

    def __init__(self):
        super().__init__()
        self.batches, self.order = batches(8), list(range(8))
        self.random = np.random.default_rng(7)

    @property
    def num_batches(self):
        return len(self.order)

    def __getitem__(self, index):
        return self.batches[self.order[index]]

    def on_epoch_end(self):
        self.order = self.random.permutation(8).tolist()


def several_passes():
    def run(step, infeed, losses):
        def call():
            if infeed.delivered == 8:
                infeed.close()
            millrace.repeat(STEPS, step, infeed=infeed)
            return losses.dequeue()

        return call

    return trained(Passes(), run=run)


def not_built():
    model = keras.Sequential(
        [layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(1)]
    )
    return trained(batches(), model, keras.optimizers.AdamW(0.01))


def accumulated():
    model = network()
    optimizer = AccumulatingOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), 2)
    return trained(batches(), model, optimizer)


def while_loop_with_inputs():
    model, optimizer = network(), keras.optimizers.SGD(0.1, momentum=0.9)
    infeed, losses = millrace.InfeedQueue(batches()), millrace.OutfeedQueue()
    step = training_step(model, optimizer, losses)
    values = {"mean": np.float32(0), "count": 0}
    most = keras.Variable(3.0)

    def body(mean, count, x, y):
        step(x, y)
        return 0.9 * mean + 0.1 * ops.mean(x), count + 1

    def call():
        mean, _ = millrace.while_loop(
            lambda mean, count: count < ops.cast(most, "int32"),
            body,
            [values["mean"], 0],
            infeed,
        )
        values["mean"], values["count"] = np.asarray(mean), values["count"] + 1
        most.assign(7 - most)
        return np.append(losses.dequeue(), values["mean"])

    parts = {"model": model, "optimizer": optimizer, "queues": [infeed], "most": most}
    return parts, values, call


def compiled_with_metric():
    model, optimizer = network(), keras.optimizers.Adam(0.01)
    infeed, losses = millrace.InfeedQueue(batches()), millrace.OutfeedQueue("last")
    step, metric = training_step(model, optimizer, losses), keras.metrics.Mean()
    strategy = millrace.Strategy(devices=1)

    def body(x, y):
        step(x, y)
        metric.update_state(ops.mean(model(x)))
        return

    @millrace.compile
    def train(steps, rate):
        optimizer.learning_rate.assign(rate)
        millrace.repeat(steps, body, infeed=infeed)
        return metric.result()

    def call():
        # Rates are drawn in Python: the generators of the process continue, too.
        result = strategy.run(train, [STEPS, float(np.random.uniform(0.01, 0.02))])
        return np.array([result, losses.dequeue()])

    parts = {"model": model, "all": {"optimizer": optimizer, "metric": metric}, "infeed": infeed}
    return {**parts, "losses": losses}, {}, call


def small():
    """Without models, which take a second to compile."""
    weight, momentum = (
        keras.Variable(np.zeros(3, "float32")),
        keras.Variable(np.zeros(3, "float32")),
    )
    seed, losses = keras.random.SeedGenerator(3), millrace.OutfeedQueue()
    infeed = millrace.InfeedQueue([np.float32(k) for k in range(100)])

    def body(x):
        momentum.assign(0.9 * momentum + keras.random.normal((3,), seed=seed) * x)
        weight.assign_sub(0.1 * momentum)
        losses.enqueue(weight.value)

    def call():
        millrace.repeat(STEPS, body, infeed=infeed)
        return losses.dequeue()

    return (
        {"weights": {"weight": weight, "momentum": momentum}, "seed": seed, "in": infeed},
        {},
        call,
    )


def keras_numbers_without_a_seed():
    total = keras.Variable(np.zeros(3, "float32"))

    def call():
        noise = keras.random.normal((3,))
        millrace.repeat(STEPS, lambda x: (total.assign_add(x), x * 0.5)[1], inputs=noise)
        return np.array(total)

    return {"total": total}, {}, call


def replicas_that_drift():
    model, losses = network(), millrace.OutfeedQueue()
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)
    infeed, step = millrace.InfeedQueue(batches()), training_step(model, optimizer, losses)

    @functools.partial(millrace.compile, replicas=2)
    def train(steps):
        millrace.repeat(steps, step, infeed=infeed)

    def call():
        train(STEPS)
        return losses.dequeue()

    return {"model": model, "optimizer": optimizer, "infeed": infeed}, {}, call


def replicas_that_agree():
    model, losses = network(), millrace.OutfeedQueue()
    optimizer = CrossReplicaOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
    infeed, step = millrace.InfeedQueue(batches()), training_step(model, optimizer, losses)

    @functools.partial(millrace.compile, replicas=2)
    def train(steps):
        millrace.repeat(steps, step, infeed=infeed)
        return cross_replica_mean(replication_index())

    def call():
        train(STEPS)
        return losses.dequeue()

    return {"model": model, "optimizer": optimizer, "infeed": infeed}, {}, call


def two_networks():
    one, other = network(), network(0.2)
    of_one, of_other = keras.optimizers.Adam(0.01), keras.optimizers.RMSprop(0.01)
    queues = [millrace.InfeedQueue(batches()), millrace.InfeedQueue(lambda: iter(batches()))]
    losses = [millrace.OutfeedQueue(), millrace.OutfeedQueue()]
    first = training_step(one, of_one, losses[0])
    second = training_step(other, of_other, losses[1])

    @millrace.compile
    def train():
        millrace.repeat(2, first, infeed=queues[0])
        millrace.repeat(3, second, infeed=queues[1])

    def call():
        train()
        return np.concatenate([queue.dequeue() for queue in losses])

    parts = {"models": [one, other], "optimizers": [of_one, of_other], "queues": queues}
    return parts, {}, call


def own_generator():
    weight, random = keras.Variable(1.0), np.random.default_rng(11)

    @jax.jit
    def factor(x):
        return x * 0.5

    def call():
        millrace.repeat(3, lambda x: (weight.assign_add(x), x)[1], inputs=factor(random.normal()))
        return np.array(weight)

    return {"weight": weight, "random": random}, {}, call


QUICK = (small, keras_numbers_without_a_seed)
SLOW = (
    arrays, while_loop_with_inputs, generator, generator_function, shuffled_by_shared_numbers,
    noise_of_shared_numbers, own_state,
    of_grain, several_passes, not_built, accumulated, compiled_with_metric, replicas_that_drift,
    replicas_that_agree, two_networks, own_generator,
)  # fmt: skip
