"""Idioms of the small published programs: random numbers, shapes and indices in functions."""

import pytest
from idioms import idiom

START = """
import numpy as np
import tensorflow as tf
from tensorflow.python import ipu

cfg = ipu.config.IPUConfig()
cfg.auto_select_ipus = 1
cfg.configure_ipu_system()
strategy = ipu.ipu_strategy.IPUStrategy()
"""


@idiom("Imports", "`from tensorflow.python.keras.optimizer_v2.rmsprop import RMSprop`")
@idiom("Imports", "`from keras.optimizer_v2 import adam as adam_v2`")
@idiom("Imports", "`from keras.layers.core.dense import Dense`, `keras.engine.base_layer`")
def test_modules_in_old_modules(program):
    printed = program("""
        import keras
        from keras.layers.core.dense import Dense
        from keras.layers.rnn.lstm import LSTM
        from keras.optimizer_v2 import adam as adam_v2
        from tensorflow.python.keras.engine import base_layer
        from tensorflow.python.keras.engine.input_layer import InputLayer
        from tensorflow.python.keras.optimizer_v2.rmsprop import RMSprop
        import tensorflow.keras.optimizers as optimizers
        print(RMSprop is optimizers.RMSprop, adam_v2.Adam is optimizers.Adam)
        print(Dense is keras.layers.Dense, LSTM is keras.layers.LSTM)
        print(base_layer.Layer is keras.layers.Layer, InputLayer is keras.layers.InputLayer)
    """)
    assert printed == "True True\n" * 3


@idiom("TensorFlow", "`tf.random.normal(tf.shape(x))`, without a seed, in a `tf.function`")
@idiom("TensorFlow", "`tf.random.set_seed(1)`, for the numbers of compiled functions, too")
def test_random_numbers_of_compiled_functions(program):
    printed = program(
        START
        + """
@tf.function(experimental_compile=True)
def noise(x):
    return tf.random.normal(tf.shape(x))

@tf.function(experimental_compile=True)
def sums(n):
    total = tf.zeros([3, 1000])
    for _ in tf.range(n):
        total += tf.random.uniform([3, 1000])
    return total

@tf.function(experimental_compile=True)
def dropped(x):
    return tf.nn.dropout(x, rate=0.25)

def draws(seed):
    tf.random.set_seed(seed)
    with strategy.scope():
        return [strategy.run(noise, args=[tf.ones([50, 40])]).numpy() for _ in range(2)]

first, second = draws(1)
print(first.shape, abs(first.mean()) < 0.1, abs(first.std() - 1) < 0.1)
print("differ", not np.array_equal(first, second))
print("again", all(np.array_equal(a, b) for a, b in zip(draws(1), (first, second))))
print("other seed", not np.array_equal(draws(2)[0], first))
total = strategy.run(sums, args=[12]).numpy()
print("a sum of twelve has a variance of", round(float(total.var()), 1))
kept = strategy.run(dropped, args=[tf.ones([100, 100])]).numpy()
print(sorted({round(float(v), 3) for v in kept.ravel()}), abs((kept > 0).mean() - 0.75) < 0.02)
"""
    )
    assert printed.splitlines() == [
        "(50, 40) True True",
        "differ True",
        "again True",
        "other seed True",
        "a sum of twelve has a variance of 1.0",
        "[0.0, 1.333] True",
    ]


@idiom("Replicas", "random numbers of a replicated function: each replica has its own")
def test_replicas_draw_other_numbers(program):
    printed = program(
        START.replace("auto_select_ipus = 1", "auto_select_ipus = 2")
        + """
queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

@tf.function(experimental_compile=True)
def noise(n):
    for _ in tf.range(n):
        queue.enqueue(tf.random.uniform([4]))

with strategy.scope():
    strategy.run(noise, args=[3])
drawn = queue.dequeue().numpy()
print(drawn.shape, len({float(value) for value in drawn.ravel()}))
"""
    )
    assert printed == "(3, 2, 4) 24\n"


@idiom("TensorFlow", "`tf.while_loop` whose body assigns variables, or draws random numbers")
def test_a_while_loop_carries_variables(program):
    printed = program(
        START
        + """
count = tf.Variable(0.0)

@tf.function(experimental_compile=True)
def run(limit):
    def body(i, total, pair):
        count.assign_add(2.0)
        return i + 1, total + tf.random.uniform([]), {"a": pair["a"] + total}
    i, total, pair = tf.while_loop(
        lambda i, *_: i < limit, body, (tf.constant(0), tf.zeros([]), {"a": tf.zeros([])})
    )
    (j,) = tf.while_loop(lambda j: j < 3, lambda j: [j + 1], [0])
    return i, total, j

with strategy.scope():
    i, total, j = strategy.run(run, args=[tf.constant(5)])
print(int(i), 0 < float(total) < 5, int(j), float(count))
"""
    )
    assert printed == "5 True 3 10.0\n"


@idiom(
    "TensorFlow", "`tf.zeros([tf.shape(x)[0], n])`, and other sums of shapes, in a `tf.function`"
)
@idiom("TensorFlow", "`tf.broadcast_to(x, tf.constant([n, 3]))`, `tf.cast(x.shape[0], tf.int32)`")
def test_shapes_in_compiled_functions(program):
    printed = program(
        START
        + """
@tf.function(experimental_compile=True)
def shapes(x):
    batch = tf.shape(x)[0]
    n = tf.cast(x.shape[1], tf.int32)
    flat = tf.reshape(x, [batch * n])
    joined = tf.concat([tf.shape(x)[:1], [2, 2]], axis=0)
    parts = tf.reshape(x, tf.stack([batch, n // 2, 2]))
    results = [tf.zeros([batch, 7]), flat, tf.reshape(x, joined), parts, tf.ones(tf.shape(x)[1])]
    count = tf.constant(1)
    count += tf.cast(x[0, 0], tf.int32)
    results += [tf.broadcast_to(x[:, None], tf.constant([3, 5, 4])), tf.fill([n, batch], 1.0)]
    results += [tf.tile(x, [batch, 1]), tf.eye(4), tf.range(4)]
    assert x.get_shape().as_list() == [3, 4] and x.get_shape().rank == 2
    return results

with strategy.scope():
    results = strategy.run(shapes, args=[tf.ones([3, 4])])
print([tuple(each.shape) for each in results])
"""
    )
    expected = [(3, 7), (12,), (3, 2, 2), (3, 2, 2), (4,), (3, 5, 4), (4, 3), (9, 4), (4, 4), (4,)]
    assert printed == f"{expected}\n"


@idiom("TensorFlow", "`tf.gather_nd`, `tf.scatter_nd`, `tf.tensor_scatter_nd_add(x, [[i, 0]], u)`")
@idiom("TensorFlow", "`tf.math.unsorted_segment_mean(x, ids, n)`, `tf.nn.embedding_lookup`")
@idiom("TensorFlow", "`tf.boolean_mask` of results, `tf.norm`, `tf.einsum`, `tf.nn.l2_normalize`")
@idiom("TensorFlow", "`with tf.control_dependencies([...]):`, `tf.no_op()` in a `tf.cond`")
def test_indices_and_norms(program):
    printed = program(
        START
        + """
x = tf.constant([[1., 2.], [3., 4.], [5., 6.]])

@tf.function(experimental_compile=True)
def run(x, i):
    with tf.control_dependencies([x]):
        x = tf.identity(x)
    tf.cond(i > 0, lambda: tf.no_op(), lambda: tf.no_op())
    return {
        "nd": tf.gather_nd(x, [[0, 1], [2, 0]]),
        "scatter": tf.scatter_nd([[1], [1]], tf.constant([2., 3.]), [3]),
        "add": tf.tensor_scatter_nd_add(x, indices=[[i, 0], [i, 0]], updates=[10., 20.]),
        "update": tf.tensor_scatter_nd_update(x, [[0]], [[9., 9.]]),
        "mean": tf.math.unsorted_segment_mean(x, [0, 2, 0], 3),
        "max": tf.math.unsorted_segment_max(x, [0, 1, 0], num_segments=2),
        "rows": tf.nn.embedding_lookup(x, [2, 2]),
        "norm": tf.norm(x, axis=1),
        "whole": tf.linalg.norm(x),
        "einsum": tf.einsum("ij,kj->ik", x, x),
        "unit": tf.nn.l2_normalize(x, 1, epsilon=1e-7),
        "clip": tf.clip_by_norm(x, 1.0),
        "roll": tf.roll(x, shift=1, axis=0),
    }

with strategy.scope():
    results = strategy.run(run, args=[x, tf.constant(1)])
a = x.numpy()
expected = {
    "nd": [2., 5.], "scatter": [0., 5., 0.], "add": [[1, 2], [33, 4], [5, 6]],
    "update": [[9, 9], [3, 4], [5, 6]], "mean": [[3, 4], [0, 0], [3, 4]], "max": [[5, 6], [3, 4]],
    "rows": a[[2, 2]], "norm": np.linalg.norm(a, axis=1), "whole": np.sqrt((a ** 2).sum()),
    "einsum": a @ a.T, "unit": a / np.linalg.norm(a, axis=1, keepdims=True),
    "clip": a / np.sqrt((a ** 2).sum()), "roll": np.roll(a, 1, 0),
}
assert set(expected) == set(results)
print([name for name in results if not np.allclose(results[name], expected[name], rtol=1e-6)])
print(tf.boolean_mask(x, [True, False, True]).numpy().tolist())
print(tf.boolean_mask(x, [False, True], axis=1).numpy().tolist())
"""
    )
    assert printed == "[]\n[[1.0, 2.0], [5.0, 6.0]]\n[[2.0], [4.0], [6.0]]\n"


def test_a_mask_within_a_compiled_function_is_refused(program):
    with pytest.raises(Exception, match=r"Write tf\.where") as raised:
        program(START + "tf.function(lambda x: tf.boolean_mask(x, x > 0))(tf.ones([2]))")
    assert type(raised.value).__name__ == "LoopError"


@pytest.mark.slow
@idiom("Training", "`Adam(learning_rate=tf.constant(0.01))`, a rate that is an array")
@idiom("Training", "`tape.watch(variables)` of a list, and a persistent tape that is deleted")
def test_tapes_and_rates(program):
    printed = program(
        START
        + """
@tf.function(experimental_compile=True)
def train(model, optimizer, x):
    variables = model.trainable_variables
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(variables)
        loss = tf.reduce_mean(model(x) ** 2)
        other = tf.reduce_sum(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    others = tape.gradient(other, model.trainable_variables)
    del tape
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss, others[0]

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(learning_rate=tf.constant(0.01, name="rate"))
    x = tf.constant([[1., 2.], [3., 5.]])
    losses = [strategy.run(train, args=[model, optimizer, x]) for _ in range(3)]
print(float(losses[2][0]) < float(losses[0][0]), losses[0][1].numpy().ravel().tolist())
"""
    )
    assert printed == "True [4.0, 7.0]\n"


@pytest.mark.slow
@idiom("TensorFlow", "`@tf.custom_gradient`, whose gradient a tape and `fit` take")
def test_a_gradient_of_ones_own(program):
    printed = program(
        START
        + """
@tf.custom_gradient
def softplus(x, scale=1.0):
    e = tf.exp(x)
    def grad(upstream):
        return upstream * scale * (1 - 1 / (1 + e))
    return tf.math.log(1 + e), grad

@tf.custom_gradient
def product(x, y):
    return x * y, lambda upstream: (upstream * 2.0, upstream * 3.0)

@tf.function(experimental_compile=True)
def step(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = softplus(x)
    return tape.gradient(y, x)

@tf.function(experimental_compile=True)
def of_two(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = product(x, x) + softplus(x, scale=100.0)
    return tape.gradient(y, x)

with strategy.scope():
    one = strategy.run(step, args=[tf.constant(100.0)])
    print(one, strategy.run(of_two, args=[tf.constant(0.0)]))
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    activation = tf.keras.layers.Lambda(lambda x: softplus(x, scale=4.0))
    model = tf.keras.Sequential([tf.keras.Input((1,)), dense, activation])
    model.compile("sgd", loss=lambda y_true, y_pred: y_pred)
    model.fit(tf.ones([4, 1]), tf.ones([4, 1]), batch_size=4, verbose=0)
    print(model.get_weights()[0].item())
"""
    )
    assert printed.splitlines() == ["1.0 55.0", "-0.019999999552965164"]


@idiom("Data", "`options = tf.data.Options()`, `options.experimental_threading.max_intra_op = 1`")
def test_options_of_data_sets(program):
    printed = program("""
        import tensorflow as tf

        options = tf.data.Options()
        options.experimental_deterministic = False
        options.experimental_threading.private_threadpool_size = 8
        options.experimental_optimization.map_parallelization = True
        options.autotune.enabled = True
        dataset = tf.data.Dataset.range(4).with_options(options)
        print([int(x) for x in dataset], options.experimental_threading.private_threadpool_size)
    """)
    assert printed == "[0, 1, 2, 3] 8\n"


@idiom("Training", "`loss += tf.add_n(model.losses)` of a model that its first batch builds")
def test_regularization_of_an_unbuilt_model(program):
    printed = program(
        START
        + """
@tf.function(experimental_compile=True)
def step(model, x):
    y = model(x)
    return tf.reduce_sum(y) * 0 + tf.add_n(model.losses)

with strategy.scope():
    regularizer = tf.keras.regularizers.l2(0.5)
    model = tf.keras.Sequential([
        tf.keras.layers.Dense(3, kernel_initializer="ones", kernel_regularizer=regularizer)
    ])
    print(float(strategy.run(step, args=[model, tf.ones([2, 4])])))
"""
    )
    assert printed == "6.0\n"
