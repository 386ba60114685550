"""A thread that reads an outfeed queue while the program that fills it runs."""

import itertools
import threading
import time

import jax
import numpy as np
import pytest

from millrace_ipu import ipu
from millrace_ipu import tensorflow as tf

STEPS = 100
ROWS = 8


def rows():
    random = np.random.default_rng(2)
    x = random.normal(size=(STEPS * ROWS, 6)).astype("float64")  # as x_train / 255.0 is
    return x, (np.abs(x).argmax(1) % 3).astype("int64")


def dataset():
    data = tf.data.Dataset.from_tensor_slices(rows())
    data = data.map(lambda x, y: (tf.cast(x, tf.float32), tf.cast(y, tf.int32)))
    return data.batch(ROWS, drop_remainder=True).repeat().prefetch(16)


queue = None


@tf.function(experimental_compile=True)
def training_step(num_iterations, iterator, in_model, optimizer):
    for _ in tf.range(num_iterations):
        features, labels = next(iterator)
        with tf.GradientTape() as tape:
            predictions = in_model(features, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, predictions)
            loss = tf.reduce_mean(losses)
            grads = tape.gradient(loss, in_model.trainable_variables)
        optimizer.apply_gradients(zip(grads, in_model.trainable_variables, strict=True))
        queue.enqueue(loss)


def by_hand(kernel, bias):
    """The same losses, by JAX alone."""
    x, y = rows()
    x, y = x.astype("float32").reshape(STEPS, ROWS, -1), y.reshape(STEPS, ROWS)

    def loss(weights, x, y):
        logits = jax.nn.log_softmax(x @ weights[0] + weights[1])
        return -logits[np.arange(ROWS), y].mean()

    def step(weights, batch):
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value

    return jax.lax.scan(step, (kernel, bias), (x, y))


@pytest.mark.slow
def test_f36_a_thread_reads_while_the_program_runs(system):
    global queue
    system(1)
    queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()
    strategy = ipu.ipu_strategy.IPUStrategyV1()
    seen, times = [], []

    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((6,)), tf.keras.layers.Dense(3, activation="softmax")]
        )
        weights = model.get_weights()
        optimizer = tf.keras.optimizers.SGD(0.1)
        compiled = threading.Event()
        iterator = iter(slow_dataset(compiled))

        def dequeue_thread_fn():
            while len(seen) != STEPS:
                for loss in queue:
                    times.append(time.monotonic())
                    seen.append(float(loss.numpy()))

        thread = threading.Thread(target=dequeue_thread_fn)
        thread.start()
        strategy.run(training_step, args=[tf.constant(1), iterator, model, optimizer])
        compiled.set()
        strategy.run(training_step, args=[tf.constant(STEPS - 1), iterator, model, optimizer])
        returned = time.monotonic()
        thread.join()
    assert times[1] < returned  # the first of the second run
    assert len(seen) == STEPS
    (kernel, bias), losses = by_hand(*weights)
    np.testing.assert_allclose(seen, losses, rtol=1e-4)
    np.testing.assert_allclose(model.get_weights()[0], kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()[1], bias, rtol=1e-4, atol=1e-6)
    assert list(queue) == []


def slow_dataset(compiled):
    """The data; once there is a program, it waits for an element most of the time."""
    numbers = itertools.count()

    def wait(features, labels):
        if next(numbers) > 1:  # what is prepared while XLA compiles would all be there at once
            compiled.wait()
            time.sleep(0.01)
        return features, labels

    return dataset().map(wait)


def test_f36_only_queues_that_keep_all_are_iterated():
    mode = ipu.ipu_outfeed_queue.IPUOutfeedMode.LAST
    with pytest.raises(RuntimeError, match=r"cannot be iterated"):
        iter(ipu.ipu_outfeed_queue.IPUOutfeedQueue(mode))


def test_f33_an_iterator_of_a_scope_is_for_compiled_functions(system):
    system(1)
    with ipu.ipu_strategy.IPUStrategy().scope():
        iterator = iter(dataset())
        with pytest.raises(RuntimeError, match=r"enable_dataset_iterators=False"):
            next(iterator)
    with ipu.ipu_strategy.IPUStrategy(enable_dataset_iterators=False).scope():
        features, labels = next(iter(dataset()))
        assert (features.shape, labels.dtype) == ((ROWS, 6), tf.int32)


def test_f31_a_body_of_a_native_loop_may_have_a_tape(system):
    system(1)
    weight = tf.Variable(1.0)

    def body(x):
        with tf.GradientTape() as tape:
            loss = tf.square(weight * x)
        (gradient,) = tape.gradient(loss, [weight])
        weight.assign_sub(0.1 * gradient)

    def network():
        data = tf.data.Dataset.from_tensor_slices(np.float32([1, 2, 1]))
        return ipu.loops.repeat(3, body, infeed_queue=ipu.ipu_infeed_queue.IPUInfeedQueue(data))

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        ipu.ipu_compiler.compile(network)
    expected = 1.0
    for x in (1, 2, 1):
        expected -= 0.1 * 2 * expected * x * x
    np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)
