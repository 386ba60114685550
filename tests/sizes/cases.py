"""Every capability once at sizes of real use: `python cases.py DEVICES [NAME ...]`.

Elements of 4 KB, 1 MB and 16 MB, 1,000 steps, 100 layers, 64 micro-batches. Each case compares its
numbers with plain Keras or with NumPy. A case that takes longer than a minute prints the stacks of
all threads and ends the process.
"""

import faulthandler
import os
import sys
import tempfile
import time

os.environ["MILLRACE_CACHE_DIR"] = "off"
DEVICES = int(sys.argv[1])

import millrace  # noqa: E402

millrace.distributed.initialize()  # alone, or as one of several processes

STRATEGY = millrace.Strategy() if DEVICES == 0 else millrace.Strategy(devices=f"cpu:{DEVICES}")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

WATCHDOG_SECONDS = 60
KB4, MB1, MB16 = 1 << 10, 1 << 18, 1 << 22  # numbers of float32
SIZES = ((KB4, 1000), (MB1, 40), (MB16, 3))
random = np.random.default_rng(0)


def rows(count, width):
    return random.standard_normal((count, width), dtype=np.float32) / 8


def trained(build, x, y, batch, choose=None, **options):
    """The weights of a model, trained by plain Keras, or under the strategy."""
    keras.utils.set_random_seed(0)
    if choose is None:
        model = build()
    else:
        with STRATEGY.scope():
            model = build()
    # Steps of an execution, which must be whole updates; plain Keras takes one at a time.
    steps = options.pop("steps", 2)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", steps_per_execution=steps)
    if choose is not None:
        choose(model)
    model.fit(x, y, batch_size=batch, shuffle=False, verbose=0, **options)
    return [np.asarray(weight) for weight in model.get_weights()]


def check(found, expected, tolerance=2e-5):
    for mine, theirs in zip(found, expected, strict=True):
        scale = np.abs(theirs).max() + 1e-6
        assert np.abs(mine - theirs).max() <= tolerance * scale, np.abs(mine - theirs).max() / scale


def deep(depth, width):
    hidden = lambda: [layers.Dense(width, "tanh") for _ in range(depth)]  # noqa: E731
    return lambda: keras.Sequential([keras.Input((width,)), *hidden()])


# Own loops.


def own_loops(replicas):
    for size, steps in SIZES:
        steps = max(steps // replicas, 2)
        for form in ("repeat", "while_loop"):
            if form == "while_loop" and size == KB4:
                steps //= 10

            def data(size=size):
                number = 0
                while True:
                    yield np.full(size, number % 7, np.float32)
                    number += 1

            infeed, queue = millrace.InfeedQueue(data), millrace.OutfeedQueue()
            total = keras.Variable(np.zeros(size, np.float32))

            def body(x, total=total, queue=queue):
                total.assign_add(x)
                queue.enqueue(total.value)

            def run(n, form=form, body=body, infeed=infeed):
                if form == "repeat":
                    millrace.repeat(n, body, infeed=infeed)
                else:
                    millrace.while_loop(lambda: True & (jnp.int32(0) == 0), body, None, infeed, n)

            functions = [millrace.compile(run, replicas=replicas)]
            functions += [run] if replicas == 1 else []
            done = 0
            with STRATEGY.scope(), infeed:
                for function in functions:
                    function(steps)
                    found = queue.dequeue().reshape(steps, replicas, size)
                    elements = np.arange((done + steps) * replicas).reshape(-1, replicas) % 7
                    expected = (
                        elements.cumsum(0)[done:] if replicas > 1 else elements.cumsum()[done:]
                    )
                    for edge in (0, size // 2, size - 1):
                        np.testing.assert_array_equal(
                            found[:, :, edge], expected.reshape(steps, replicas)
                        )
                    done += steps


def nested_loops(replicas):
    size, queue, sums = MB1, millrace.OutfeedQueue(), millrace.OutfeedQueue()
    infeed = millrace.InfeedQueue(lambda: (np.full(size, k, np.float32) for k in range(10**6)))

    def inner(total, x):
        queue.enqueue(x[:KB4])
        return total + x

    def outer():
        sums.enqueue(millrace.repeat(4, inner, jnp.zeros(size), infeed))

    with STRATEGY.scope(), infeed:
        millrace.compile(lambda: millrace.repeat(5, outer), replicas=replicas)()
    elements = np.arange(20 * replicas).reshape(20, replicas)
    np.testing.assert_array_equal(queue.dequeue().reshape(20, replicas, KB4)[..., -1], elements)
    expected = elements.reshape(5, 4, replicas).sum(1)
    np.testing.assert_array_equal(sums.dequeue().reshape(5, replicas, size)[..., -1], expected)


def on_host(x):
    """Twice `x`, by a Python function that the program calls."""
    spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(lambda a: np.asarray(a) * 2, spec, x, vmap_method="sequential")


def data_and_callbacks_that_use_jax(replicas):
    def data():
        value = jnp.zeros(MB1)
        while True:
            value = jnp.minimum(value + 1, 8)
            yield value

    queue = millrace.OutfeedQueue()
    with STRATEGY.scope(), millrace.InfeedQueue(data) as infeed:
        body = lambda x: queue.enqueue(on_host(x) + x)  # noqa: E731
        millrace.compile(lambda: millrace.repeat(8, body, infeed=infeed), replicas=replicas)()
    found = queue.dequeue().reshape(8 * replicas, MB1)[:, -1]
    np.testing.assert_array_equal(found, 3 * np.minimum(np.arange(1, 8 * replicas + 1), 8))


class Twice(layers.Layer):
    def call(self, x):
        return x + jax.lax.stop_gradient(on_host(jax.lax.stop_gradient(x)))


# fit.


def fit_with_callbacks_of_the_user(replicas):
    def build():
        return keras.Sequential(
            [keras.Input((1024,)), layers.Dense(1024), Twice(), layers.Dense(1)]
        )

    x = rows(256 * replicas * 2, 1024)
    y = x[:, :1]

    def batches():
        for k in range(2 * replicas):
            part = slice(256 * k, 256 * (k + 1))
            yield jnp.asarray(x[part]) * 1, jnp.asarray(y[part]) * 1

    keras.utils.set_random_seed(0)
    with STRATEGY.scope():
        model = build()
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", steps_per_execution=2 * replicas)
    model.fit(batches(), steps_per_epoch=2 * replicas, verbose=0)
    check(model.get_weights(), trained(build, x, y, 256 * replicas))


def thousand_steps():
    x = rows(4000, KB4)
    build = lambda: keras.Sequential([keras.Input((KB4,)), layers.Dense(8), layers.Dense(1)])  # noqa: E731
    found = trained(build, x, x[:, :1], 4, lambda model: None, steps=100)
    check(found, trained(build, x, x[:, :1], 4, steps=1), 1e-4)


def accumulation_of_64():
    x = rows(64 * 256, KB4)
    build = lambda: keras.Sequential([keras.Input((KB4,)), layers.Dense(64), layers.Dense(1)])  # noqa: E731

    def choose(model):
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=64)

    found = trained(build, x, x[:, :1], 256, choose, steps=64)
    check(found, trained(build, x, x[:, :1], 64 * 256, steps=1))


def hundred_layers():
    build, x = deep(100, 16), rows(64, 16)
    statistics = millrace.callbacks.TensorStatistics(activations="dense_9*")
    watch = millrace.callbacks.NaNWatch(gradients=["*/kernel"], directory=tempfile.mkdtemp())
    callbacks = [statistics, watch]
    found = trained(build, x, x, 8, lambda m: None, steps=4, callbacks=callbacks)
    assert watch.found is None
    check(found, trained(build, x, x, 8), 1e-4)


def recomputed():
    def build():
        x = h = keras.Input((256,))
        for _ in range(24):
            h = millrace.layers.RecomputationCheckpoint()(layers.Dense(256, "tanh")(h))
        return keras.Model(x, layers.Dense(1)(h))

    x = rows(2048, 256)
    plain = trained(build, x, x[:, :1], 1024)
    check(trained(build, x, x[:, :1], 1024, lambda m: m.set_recomputation_options()), plain)
    budget = lambda model: model.set_recomputation_options(budget=0.7)  # noqa: E731
    check(trained(build, x, x[:, :1], 1024, budget), plain)


def tensors_of_16_mb():
    queue = millrace.OutfeedQueue()

    def build(taps=False):
        x = keras.Input((KB4,))
        h = layers.Dense(4096)(x)  # 16 MB of weights
        h = millrace.layers.Outfeed(queue, name="tapped")(h) if taps else h
        return keras.Model(x, layers.Dense(1)(h))

    def choose(model):
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)

    x = rows(4096, KB4)
    plain = trained(build, x, x[:, :1], 2048, steps=1)
    check(trained(lambda: build(True), x, x[:, :1], 1024, choose), plain)
    assert queue.dequeue()["tapped"].shape == (4, 1024, 4096)  # 16 MB each


def kept_training():
    build = lambda: keras.Sequential([keras.Input((KB4,)), layers.Dense(8192), layers.Dense(1)])  # noqa: E731
    x, directory = rows(64, KB4), tempfile.mkdtemp()

    def run(epochs):
        saves = millrace.callbacks.Checkpoint(directory)
        return trained(build, x, x[:, :1], 16, lambda m: None, epochs=epochs, callbacks=[saves])

    run(1)
    check(run(2), trained(build, x, x[:, :1], 16, epochs=2))


def ahead_of_time():
    build = deep(100, 64)
    x = rows(64, 64)
    keras.utils.set_random_seed(0)
    with STRATEGY.scope():
        model = build()
    model.compile("sgd", "mse", steps_per_execution=2)
    model.precompile((x[:16], x[:16]), steps_per_epoch=4)
    count = sum(each.is_executable for each in STRATEGY.compile_log)
    model.fit(x, x, batch_size=16, verbose=0)
    assert sum(each.is_executable for each in STRATEGY.compile_log) == count
    assert STRATEGY.export_executables(tempfile.mkdtemp()) >= 1


def planned():
    x = rows(2048, 256)
    with STRATEGY.scope():
        model = deep(12, 256)()
    model.compile("sgd", "mse", steps_per_execution=2)
    plan = STRATEGY.plan(model, (x[:1024], x[:1024]), memory="64MB")
    plan.apply()
    before = model.evaluate(x, x, batch_size=1024, verbose=0)
    model.fit(x, x, batch_size=1024, verbose=0)
    assert model.evaluate(x, x, batch_size=1024, verbose=0) < before


def predicted():
    x = rows(3072, KB4)
    with STRATEGY.scope():
        model = keras.Sequential([keras.Input((KB4,)), layers.Dense(4096)])
    model.compile("sgd", "mse", steps_per_execution=2)
    found = model.predict(x, batch_size=1024, verbose=0)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(found[::97], x[::97] @ kernel + bias, rtol=1e-3, atol=1e-4)


def asynchronous():
    seen = []

    class Count(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(batch)

    x = rows(4000, 64)
    build = lambda: keras.Sequential([keras.Input((64,)), layers.Dense(1)])  # noqa: E731
    found = trained(
        build,
        x,
        x[:, :1],
        4,
        lambda model: model.set_asynchronous_callbacks(True),
        steps=10,
        callbacks=[Count()],
    )
    assert seen[-1] == 999
    check(found, trained(build, x, x[:, :1], 4, steps=1), 1e-4)


# Several devices.


def stage_layers(depth):
    return [layers.Dense(256), *[layers.Activation("tanh") for _ in range(depth - 1)]]


def pipeline(stages, micro_batches, replicas=1):
    """A pipeline with activations of 1 MB between its stages."""
    build = lambda: keras.Sequential([keras.Input((256,)), *stage_layers(stages)])  # noqa: E731
    x = rows(1024 * micro_batches * replicas, 256)

    def choose(model):
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=micro_batches)
        model.set_pipeline_stage_assignment(list(range(stages)))

    found = trained(build, x, x, 1024, choose, steps=micro_batches * replicas)
    check(found, trained(build, x, x, len(x), steps=1))


def replicas_that_share(replicas, width=2048):
    """Weights and optimizer state of 16 MB, in parts."""
    build = lambda: keras.Sequential([keras.Input((width,)), layers.Dense(width)])  # noqa: E731
    x = rows(8 * replicas * 2, width)

    def choose(model):
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        model.set_replication_options(
            replicated_optimizer_state_sharding=True, replicated_weight_sharding=True
        )

    found = trained(build, x, x, 8, choose, steps=2 * replicas)
    check(found, trained(build, x, x, len(x), steps=1))


def several_processes():
    pipeline(2, 4)  # messages of 1 MB
    build = lambda: keras.Sequential([keras.Input((2048,)), layers.Dense(2048)])  # noqa: E731
    x = rows(64, 2048)  # sums of 16 MB
    found = trained(build, x, x, 16, lambda model: None, steps=2)
    check(found, trained(build, x, x, 32, steps=1))


CASES = {
    0: {"several processes": several_processes},
    1: {
        "own loops": lambda: own_loops(1),
        "nested loops": lambda: nested_loops(1),
        "data and callbacks that use JAX": lambda: data_and_callbacks_that_use_jax(1),
        "fit with callbacks of the user": lambda: fit_with_callbacks_of_the_user(1),
        "a thousand steps": thousand_steps,
        "accumulation of 64": accumulation_of_64,
        "a hundred layers": hundred_layers,
        "recomputed": recomputed,
        "tensors of 16 MB": tensors_of_16_mb,
        "a kept training": kept_training,
        "ahead of time": ahead_of_time,
        "planned": planned,
        "predicted": predicted,
        "asynchronous": asynchronous,
    },
    2: {
        "own loops": lambda: own_loops(2),
        "nested loops": lambda: nested_loops(2),
        "data and callbacks that use JAX": lambda: data_and_callbacks_that_use_jax(2),
        "fit with callbacks of the user": lambda: fit_with_callbacks_of_the_user(2),
    },
    8: {
        "own loops": lambda: own_loops(8),
        "data and callbacks that use JAX": lambda: data_and_callbacks_that_use_jax(8),
        "fit with callbacks of the user": lambda: fit_with_callbacks_of_the_user(8),
        "a pipeline of 8 stages": lambda: pipeline(8, 64),
        "a pipeline of replicas": lambda: pipeline(4, 16, replicas=2),
        "replicas that share": lambda: replicas_that_share(8),
    },
}


if __name__ == "__main__":
    for name in sys.argv[2:] or CASES[DEVICES]:
        faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
        begin = time.perf_counter()
        CASES[DEVICES][name]()
        faulthandler.cancel_dump_traceback_later()
        print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)
