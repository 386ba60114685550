"""Idioms of queues, loops, sessions and pipelines of functions."""

from idioms import idiom

HEAD = """
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python import ipu

config = ipu.config.IPUConfig()
config.auto_select_ipus = {devices}
config.configure_ipu_system()
"""


@idiom("Queues", "`IPUInfeedQueue(dataset)` and `ipu.loops.repeat(n, body, [...], infeed_queue)`")
@idiom("Queues", "`enqueued = outfeed_queue.enqueue({...})`, returned from the body of a loop")
@idiom("Queues", "`outfeed_mode=IPUOutfeedMode.LAST`")
@idiom("TensorFlow", "`@tf.function(experimental_compile=True)`, run by `strategy.run(fn)`")
def test_a_loop_with_queues(program):
    text = (
        HEAD.format(devices=1)
        + """
from tensorflow.python.ipu import ipu_infeed_queue, ipu_outfeed_queue

data = tf.data.Dataset.from_tensor_slices((np.arange(8.0, dtype=np.float32),)).repeat()
infeed = ipu_infeed_queue.IPUInfeedQueue(data)
every = ipu_outfeed_queue.IPUOutfeedQueue()
last = ipu_outfeed_queue.IPUOutfeedQueue(outfeed_mode=ipu_outfeed_queue.IPUOutfeedMode.LAST)

def body(total, x):
    total = total + x
    return total, every.enqueue({"x": x, "total": total}), last.enqueue(total)

@tf.function(experimental_compile=True)
def loop():
    return ipu.loops.repeat(6, body, [tf.constant(0.0)], infeed)

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    total = strategy.run(loop)
results = every.dequeue()
print(float(total), results["x"].numpy().tolist(), results["total"].shape, float(last.dequeue()))
"""
    )
    assert program(text) == "15.0 [0.0, 1.0, 2.0, 3.0, 4.0, 5.0] (6,) 15.0\n"


@idiom("TensorFlow", "`for _ in tf.range(n):` with `next(iterator)` in a `tf.function`")
@idiom("TensorFlow", "`with tf.GradientTape() as tape:`, `optimizer.apply_gradients(zip(...))`")
@idiom("Queues", "a queue passed to `strategy.run(fn, args=[iterator, outfeed_queue, ...])`")
@idiom("Data", "`.cache()`, `.shuffle(n)`, `.batch(b, drop_remainder=True)`, `.prefetch(AUTOTUNE)`")
@idiom("Data", "`.map(lambda d, l: (tf.cast(d, tf.float32), tf.cast(l, tf.int32)))`")
def test_a_training_loop_with_a_tape(program):
    text = (
        HEAD.format(devices=1)
        + """
x = np.random.rand(64, 4, 4)
y = (x.sum((1, 2)) > 8).astype("uint8")
data = tf.data.Dataset.from_tensor_slices((x, y)).cache()
data = data.shuffle(64).batch(8, drop_remainder=True)
data = data.map(lambda d, l: (tf.cast(d, tf.float32), tf.cast(l, tf.int32)))
data = data.prefetch(tf.data.experimental.AUTOTUNE).repeat()

@tf.function(experimental_compile=True)
def train(iterator, queue, model, optimizer, steps):
    for _ in tf.range(steps):
        features, labels = next(iterator)
        with tf.GradientTape() as tape:
            predictions = model(features, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, predictions)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        queue.enqueue(loss)

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    optimizer = keras.optimizers.SGD(0.5)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax")])
    iterator = iter(data)
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    for _ in range(0, 80, 20):
        strategy.run(train, args=[iterator, queue, model, optimizer, 20])
losses = queue.dequeue()
print(losses.shape, bool(losses[-10:].numpy().mean() < losses[:10].numpy().mean()))
"""
    )
    assert program(text) == "(80,) True\n"


@idiom("TensorFlow", "`tf.disable_v2_behavior()`, `tf.placeholder`, `tf.Session`, `feed_dict`")
@idiom("TensorFlow", "`with ipu.scopes.ipu_scope('/device:IPU:0'):` around `ipu_compiler.compile`")
@idiom("TensorFlow", "`sess.run(tf.global_variables_initializer())`")
def test_a_session(program):
    text = """
import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.scopes import ipu_scope

tf.disable_v2_behavior()
config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()

with tf.device("cpu"):
    a = tf.placeholder(np.float32, [2], name="a")
    b = tf.placeholder(np.float32, [2], name="b")

def net(a, b):
    return a + 2 * b

with ipu_scope("/device:IPU:0"):
    result = ipu.ipu_compiler.compile(net, [a, b])
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    print(sess.run(result, feed_dict={a: [1.0, 1.0], b: [0.0, 1.0]}))
tf.enable_v2_behavior()
"""
    assert program(text).strip() in ("[array([1., 3.], dtype=float32)]", "[1. 3.]")


@idiom(
    "Pipelines",
    "`pipelining_ops.pipeline(computational_stages=[...], ...)`, `OptimizerFunctionOutput`",
)
@idiom("Pipelines", "`inputs=`, `infeed_queue=`, `outfeed_queue=`, `repeat_count=` of `pipeline`")
def test_a_pipeline_of_functions(program):
    text = (
        HEAD.format(devices=2)
        + """
from tensorflow.python.ipu.ops import pipelining_ops

data = tf.data.Dataset.from_tensors((np.ones([2, 4], "float32"), np.ones([2, 1], "float32")))
infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(data.repeat())
outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
lower, upper = keras.layers.Dense(3), keras.layers.Dense(1)

def stage_1(rate, x, y):
    return rate, lower(x), y

def stage_2(rate, x, y):
    return rate, tf.reduce_mean(tf.square(upper(x) - y))

def optimizer_function(rate, loss):
    optimizer = keras.optimizers.SGD(0.05)
    return pipelining_ops.OptimizerFunctionOutput(optimizer, loss)

@tf.function(experimental_compile=True)
def train():
    return pipelining_ops.pipeline(
        computational_stages=[stage_1, stage_2],
        gradient_accumulation_count=4,
        repeat_count=3,
        inputs=[tf.constant(0.1)],
        infeed_queue=infeed,
        outfeed_queue=outfeed,
        optimizer_function=optimizer_function,
        pipeline_schedule=pipelining_ops.PipelineSchedule.Grouped,
        name="Pipeline",
    )

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    strategy.run(train)
rates, losses = outfeed.dequeue()
print(losses.shape, bool(losses[-1] < losses[0]))
"""
    )
    assert program(text) == "(12,) True\n"


@idiom("Queues", "`for element in outfeed_queue:`")
@idiom("Queues", "a tuple enqueued, a tuple dequeued")
@idiom("TensorFlow", "`@tf.function(jit_compile=True)` with arguments that are arrays")
def test_a_queue_that_is_iterated(program):
    text = (
        HEAD.format(devices=1)
        + """
queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

@tf.function(jit_compile=True)
def count(start, n):
    x = start
    for _ in tf.range(n):
        x = x * 2.0
        queue.enqueue((x, tf.cast(x, tf.int32)))
    return x

strategy = ipu.ipu_strategy.IPUStrategy()
with strategy.scope():
    print(float(strategy.run(count, args=[tf.constant(1.0), 3])))
for x, whole in queue:
    print(float(x), int(whole))
"""
    )
    assert program(text) == "8.0\n2.0 2\n4.0 4\n8.0 8\n"
