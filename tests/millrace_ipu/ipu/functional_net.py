"""Three stages of a small net, and the same training written by hand in JAX."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

from millrace_ipu import ipu
from millrace_ipu.ipu.ops.pipelining_ops import OptimizerFunctionOutput, PipelineSchedule, pipeline

ROWS = 2
RATE = 0.05


class Net:
    """Layers, data, and the functions of stages that use them."""

    def __init__(self, elements=12, sizes=(3, 5, 4, 1)):
        random = np.random.default_rng(0)
        self.layers = [keras.layers.Dense(n) for n in sizes[1:]]
        for layer, n in zip(self.layers, sizes[:-1], strict=True):
            layer.build((None, n))
        self.variables = [v for layer in self.layers for v in layer.trainable_variables]
        self.start = [v.numpy().copy() for v in self.variables]
        self.x = random.normal(size=(elements, ROWS, sizes[0])).astype("float32")
        self.y = random.normal(size=(elements, ROWS, 1)).astype("float32")

    @property
    def data(self):
        return list(zip(self.x, self.y, strict=True))

    def stage0(self, x, y):
        return ops.tanh(self.layers[0](x)), y

    def stage1(self, h, y):
        return ops.tanh(self.layers[1](h)), y

    def stage2(self, h, y):
        return ops.mean((self.layers[2](h) - y) ** 2)

    @property
    def stages(self):
        return [self.stage0, self.stage1, self.stage2]

    def reset(self):
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.assign(value)

    def weights(self):
        return [np.asarray(v.value) for v in self.variables]

    def by_hand(self, accumulation, rate, scale=1.0, elements=None):
        """Returns the losses and the weights after SGD on sums of gradients."""

        @jax.jit
        def value_and_grad(weights, x, y):
            def loss(w):
                h = jnp.tanh(x @ w[0] + w[1])
                h = jnp.tanh(h @ w[2] + w[3])
                return jnp.mean((h @ w[4] + w[5] - y) ** 2)

            return jax.value_and_grad(loss)(weights)

        weights, losses = [jnp.asarray(w) for w in self.start], []
        count = len(self.x) if elements is None else elements
        for begin in range(0, count, accumulation):
            total = [jnp.zeros_like(w) for w in weights]
            for k in range(begin, begin + accumulation):
                loss, gradients = value_and_grad(weights, self.x[k], self.y[k])
                losses.append(float(loss))
                total = [a + g for a, g in zip(total, gradients, strict=True)]
            weights = [w - rate * scale * g for w, g in zip(weights, total, strict=True)]
        return np.array(losses), [np.asarray(w) for w in weights]


def assert_weights(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def run(net, count=12, repeat_count=1, stages=None, optimizer_function="sgd", **options):
    """Runs the net's pipeline and returns the contents of its outfeed."""
    if optimizer_function == "sgd":
        optimizer = keras.optimizers.SGD(RATE)

        def optimizer_function(loss, *_):
            return OptimizerFunctionOutput(optimizer, loss)

    queue = options.pop("outfeed_queue", None) or ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    infeed = options.pop("infeed_queue", None) or ipu.ipu_infeed_queue.IPUInfeedQueue(net.data)
    options.setdefault("pipeline_schedule", PipelineSchedule.Interleaved)
    pipeline(
        stages or net.stages,
        count,
        repeat_count=repeat_count,
        infeed_queue=infeed,
        outfeed_queue=queue,
        optimizer_function=optimizer_function,
        **options,
    )
    return queue.dequeue()
