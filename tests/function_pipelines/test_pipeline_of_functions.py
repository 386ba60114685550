import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras import ops

import millrace
from millrace.errors import (
    DataError,
    LoopError,
    ModelError,
    OptionError,
    PlanError,
    ScheduleError,
)

RATE = 0.1
WAIT_SECONDS = 60  # until a test gives up on another thread


class Halves:
    """Two layers, each in a function; and the losses of training them by hand."""

    def __init__(self, elements=8):
        random = np.random.default_rng(0)
        self.encoder, self.decoder = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)
        self.x = random.normal(size=(elements, 2, 3)).astype("float32")
        self.y = random.normal(size=(elements, 2, 1)).astype("float32")
        self.optimizer = keras.optimizers.SGD(RATE)
        self.outfeed = millrace.OutfeedQueue()

    @property
    def data(self):
        return list(zip(self.x, self.y, strict=True))

    def first(self, x, y):
        return self.encoder(x), y

    def last(self, h, y):
        return ops.mean((self.decoder(h) - y) ** 2)

    def train(self, loss):
        return self.optimizer, loss

    def run(self, strategy, stages=None, micro_batches=4, **options):
        options.setdefault("infeed", millrace.InfeedQueue(self.data))
        options.setdefault("optimizer_function", self.train)
        with strategy.scope():
            millrace.pipeline(
                stages or [self.first, self.last], micro_batches, outfeed=self.outfeed, **options
            )
        return self.outfeed.dequeue()

    def by_hand(self, weights, updates, micro_batches=4, scale=0.25):
        @jax.jit
        def value_and_grad(w, x, y):
            def loss(w):
                return jnp.mean((jnp.tanh(x @ w[0] + w[1]) @ w[2] + w[3] - y) ** 2)

            return jax.value_and_grad(loss)(w)

        losses, weights = [], [jnp.asarray(w) for w in weights]
        pairs = iter(self.data)
        for _ in range(updates):
            found = [value_and_grad(weights, *next(pairs)) for _ in range(micro_batches)]
            losses += [float(loss) for loss, _ in found]
            sums = [sum(g) for g in zip(*(g for _, g in found), strict=True)]
            weights = [w - RATE * scale * g for w, g in zip(weights, sums, strict=True)]
        return losses, weights


@pytest.fixture
def two():
    return millrace.Strategy(devices=2)


def weights_of(halves):
    variables = [*halves.encoder.trainable_variables, *halves.decoder.trainable_variables]
    return [np.array(variable.value) for variable in variables]


def test_trains_on_the_mean_as_by_hand(two):
    halves = Halves()
    halves.encoder.build((None, 3))
    halves.decoder.build((None, 4))
    start = weights_of(halves)
    (losses,) = halves.run(two, updates=2)
    expected, weights = halves.by_hand(start, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for found, other in zip(weights_of(halves), weights, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)


def test_layers_build_themselves_and_programs_are_kept(two):
    halves = Halves()
    infeed = millrace.InfeedQueue(halves.data)
    halves.run(two, infeed=infeed)
    assert halves.encoder.built
    assert halves.decoder.built
    with two.no_recompile():
        halves.run(two, infeed=infeed)  # continues where the queue is
    assert int(halves.optimizer.iterations.value) == 2
    with pytest.raises(DataError, match="ended after 8 elements"):
        halves.run(two, infeed=infeed)


def test_element_by_name_and_inputs_by_position(two):
    seen = millrace.OutfeedQueue()

    def first(factor, x, y):
        return {"x": x * factor, "y": y}

    def last(x, y):
        return x, y

    with two.scope():
        millrace.pipeline(
            [first, last],
            3,
            inputs=2.0,
            infeed=millrace.InfeedQueue([{"x": np.float32(k), "y": np.int32(k)} for k in range(3)]),
            outfeed=seen,
        )
    x, y = seen.dequeue()
    np.testing.assert_array_equal(x, [0, 2, 4])
    np.testing.assert_array_equal(y, [0, 1, 2])
    assert y.dtype == np.int32


def test_state_that_layers_change_goes_on_in_the_order_of_micro_batches(two):
    halves = Halves()
    norm = keras.layers.BatchNormalization(momentum=0.5)

    def first(x, y):
        return norm(x, training=True), y

    halves.run(two, [first, halves.last])
    expected = np.zeros(3)
    for x in halves.x[:4]:
        expected = 0.5 * expected + 0.5 * x.mean(0)
    np.testing.assert_allclose(norm.moving_mean.value, expected, rtol=1e-5)


def test_in_a_compiled_function_the_host_drives_it(two):
    halves = Halves()
    infeed = millrace.InfeedQueue(halves.data)

    @millrace.compile
    def train():
        millrace.pipeline(
            [halves.first, halves.last],
            4,
            infeed=infeed,
            outfeed=halves.outfeed,
            optimizer_function=halves.train,
        )

    two.run(train)
    two.run(train)
    assert int(halves.optimizer.iterations.value) == 2
    assert halves.outfeed.dequeue()[0].shape == (8,)


def test_what_does_not_fit_is_refused(two):
    halves = Halves()
    with pytest.raises(PlanError, match=r"there is none.*set strategy=millrace.Strategy\(\)"):
        millrace.pipeline([halves.first, halves.last], 4)
    with pytest.raises(OptionError, match=r"Stage 1 of a pipeline is a function.*Received: 3"):
        halves.run(two, [halves.first, 3])
    with pytest.raises(PlanError, match=r"needs device_mapping.*device_mapping=\[0, \[1, 2\]\]"):
        halves.run(two, [halves.first, [halves.last, halves.last]])
    with pytest.raises(LoopError, match=r"returns \(optimizer, loss\).*Received"):
        halves.run(two, optimizer_function=lambda loss: loss)
    with pytest.raises(OptionError, match=r"enqueued by a stage.*set outfeed to the queue"):
        halves.run(
            two,
            [halves.first, lambda h, y: halves.outfeed.enqueue(h)],
            optimizer_function=lambda: (halves.optimizer, ops.sum(halves.decoder.kernel)),
        )
    with pytest.raises(LoopError, match=r"The optimizer function of a pipeline, .*0 values by pos"):
        halves.run(two, [halves.first, lambda h, y: None])
    with pytest.raises(ModelError, match=r"no trainable variable.*leave out optimizer_function"):
        halves.run(two, [lambda x, y: (x, y), lambda x, y: ops.sum(x)])

    def making(x, y):
        return keras.layers.Dense(4)(x), y

    with pytest.raises(ModelError, match="outside"):
        halves.run(two, [making, halves.last])
    with pytest.raises(OptionError, match=r"a dtype or a function of a value. Received: 3"):
        halves.run(two, accumulate_outfeed=True, accumulate_outfeed_dtype=3)
    with pytest.raises(OptionError, match=r"outfeed is a millrace.OutfeedQueue. Received: 1"):
        millrace.pipeline([halves.first, halves.last], 4, outfeed=1, strategy=two)


def test_a_failed_pipeline_leaves_the_queue_usable(two):
    halves = Halves()

    def failing():
        yield halves.data[0]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        halves.run(two, infeed=millrace.InfeedQueue(failing), accumulate_outfeed=True)
    assert halves.run(two, accumulate_outfeed=True)[0].shape == (1,)


@pytest.mark.parametrize("name", ["zb_v", pytest.param("v_min", marks=pytest.mark.slow)])
def test_a_v_of_four_functions_takes_two_devices(two, name):
    halves = Halves()
    halves.encoder.build((None, 3))
    halves.decoder.build((None, 4))
    start = weights_of(halves)

    def on(h, y):
        return h, y

    def further(h, y):
        return h * 1.0, y

    stages = [halves.first, on, further, halves.last]
    with pytest.raises(PlanError, match=r"the devices \[0, 1, 2, 3\].*has 2"):
        halves.run(two, stages)
    with pytest.raises(ScheduleError, match=r"Set device_mapping=\[0, 1, 1, 0\]"):
        halves.run(two, stages, pipeline_schedule=name, device_mapping=[0, 1, 0, 1])
    (losses,) = halves.run(two, stages, updates=2, pipeline_schedule=name)
    expected, weights = halves.by_hand(start, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for found, other in zip(weights_of(halves), weights, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)


def in_threads(*functions):
    """Runs functions at the same time and returns their results, in order."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(WAIT_SECONDS * 2) for future in [pool.submit(f) for f in functions]]


class Meeting:
    """Two threads meet in it; `met` holds for each visit whether the other one came."""

    def __init__(self):
        self.events, self.met = (threading.Event(), threading.Event()), []

    def visit(self, number):
        self.events[number].set()
        self.met.append(self.events[1 - number].wait(WAIT_SECONDS))


def two_strategies():
    return millrace.Strategy(devices=jax.devices()[:2]), millrace.Strategy(
        devices=jax.devices()[2:4]
    )


def test_two_strategies_trace_their_pipelines_at_the_same_time():
    meeting = Meeting()

    def run(number, strategy):
        halves = Halves()

        def first(x, y):
            meeting.visit(number)
            return halves.first(x, y)

        return halves.run(strategy, [first, halves.last])

    (a,), (b,) = in_threads(*(partial(run, k, each) for k, each in enumerate(two_strategies())))
    assert a.shape == b.shape == (4,)
    assert all(meeting.met)


def test_two_strategies_train_their_pipelines_at_the_same_time():
    class Visiting(millrace.OutfeedQueue):
        def receive(self, value, elements):
            meeting.visit(self.number)
            super().receive(value, elements)

    meeting = Meeting()
    all_halves = Halves(), Halves()
    starts = []
    for number, halves in enumerate(all_halves):
        halves.encoder.build((None, 3))
        halves.decoder.build((None, 4))
        starts.append(weights_of(halves))
        halves.outfeed = Visiting()
        halves.outfeed.number = number

    def run(halves, strategy):
        return halves.run(strategy, updates=2)

    found = in_threads(*map(partial, [run] * 2, all_halves, two_strategies()))
    for (losses,), halves, start in zip(found, all_halves, starts, strict=True):
        np.testing.assert_allclose(losses, halves.by_hand(start, 2)[0], rtol=1e-5)
    assert all(meeting.met)


def test_one_pipeline_in_two_threads_loses_no_update(two):
    halves = Halves(elements=48)
    halves.encoder.build((None, 3))
    halves.decoder.build((None, 4))
    start = weights_of(halves)
    infeed = millrace.InfeedQueue(halves.data)

    def run():
        for _ in range(3):
            with two.scope():
                millrace.pipeline(
                    [halves.first, halves.last], 4, updates=2, infeed=infeed,
                    outfeed=halves.outfeed, optimizer_function=halves.train,
                )  # fmt: skip

    in_threads(run, run)
    losses, weights = halves.by_hand(start, 12)
    np.testing.assert_allclose(
        halves.outfeed.dequeue(wait_for_completion=True)[0], losses, rtol=1e-4
    )
    for found, other in zip(weights_of(halves), weights, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)
    assert int(halves.optimizer.iterations.value) == 12


def test_ctrl_c_leaves_the_elements_that_were_drawn_ahead_in_the_queue():
    def data():
        for number in itertools.count():
            if number == 2000:  # far ahead of the first run
                os.kill(os.getpid(), signal.SIGINT)
            yield np.full((2, 3), number, np.float32)

    encoder, decoder = keras.layers.Dense(4), keras.layers.Dense(1)
    optimizer, queue = keras.optimizers.SGD(1e-9), millrace.OutfeedQueue()

    def last(x, h):
        return keras.ops.mean(decoder(h) ** 2), x[0, 0]

    def run(updates):
        millrace.pipeline(
            [lambda x: (x, encoder(x)), last],
            4,
            updates=updates,
            infeed=infeed,
            outfeed=queue,
            optimizer_function=lambda loss, number: (optimizer, loss),
        )

    with millrace.Strategy(devices=2).scope(), millrace.InfeedQueue(data) as infeed:
        run(1)
        with pytest.raises(KeyboardInterrupt):
            run(10_000)
        assert infeed.delivered == 4 * int(optimizer.iterations)
        run(2)
    numbers = queue.dequeue()[1].ravel()
    np.testing.assert_array_equal(numbers, np.arange(4 * int(optimizer.iterations)))
