"""The bytes of tapped values: those that wait to be read, and little more."""

import os
import pathlib
import subprocess
import sys
import threading

import jax
import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace.optimizers import OutfeedOptimizer
from millrace.programs.taps import delivery, entries
from millrace.programs.taps.delivery import Delivery
from millrace.programs.taps.entries import MAX_BYTES, Taps
from millrace.programs.taps.taps import Tapped

ROWS, WIDTH, UNITS = 4, 32, 256
GRADIENT = (WIDTH * UNITS + UNITS) * 4  # bytes of the gradients of one update


def train(queue, steps, when="before_apply", accumulation=1, epochs=2, replicas=1):
    """Trains a layer whose gradients go into a queue, one execution an epoch; returns weights."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(UNITS, name="layer")])
    millrace.Strategy(devices=replicas).attach(model)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulation)
    optimizer = keras.optimizers.SGD(0.1)
    if queue is not None:
        optimizer = OutfeedOptimizer(optimizer, queue, when, model=model)
    model.compile(optimizer, "mse", steps_per_execution=steps)
    random = np.random.default_rng(0)
    x = random.standard_normal((steps * ROWS, WIDTH), np.float32)
    y = random.standard_normal((steps * ROWS, UNITS), np.float32)
    history = model.fit(x, y, batch_size=ROWS, epochs=epochs, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def nbytes(taps):
    return sum(leaf.nbytes for leaf in jax.tree.leaves((taps.steps, taps.updates)))


@pytest.fixture
def of_calls(monkeypatch):
    """The bytes of the taps of each call, and the most that were alive beside the first ones."""
    sizes, alive = [], []
    deliver, distribute = Delivery.deliver, Delivery._distribute

    def delivered(self, results, replicas):
        sizes.extend(nbytes(result.taps) for result in results)
        deliver(self, results, replicas)

    def distributed(self, result, replicas):
        alive.append(sum(array.nbytes for array in jax.live_arrays()))
        distribute(self, result, replicas)

    monkeypatch.setattr(Delivery, "deliver", delivered)
    monkeypatch.setattr(Delivery, "_distribute", distributed)
    return sizes, alive


@pytest.mark.parametrize("when", ["before_apply", slow("after_compute")])
def test_calls_carry_little_and_elements_that_are_not_kept_are_let_go(of_calls, when, monkeypatch):
    monkeypatch.setattr(delivery, "MAX_PENDING", 2)
    sizes, alive = of_calls
    steps, kept = 800, 2**20
    queue = millrace.OutfeedQueue(max_bytes=kept)
    train(queue, steps, when)
    assert max(sizes) <= MAX_BYTES
    assert sum(sizes) >= 2 * steps * GRADIENT  # the elements are these: 54 MB
    # 27 MB that nobody reads in each execution; a megabyte may wait, and some calls run ahead.
    assert max(alive) < alive[0] + kept + 4 * MAX_BYTES
    assert 0 < len(queue.dequeue()["layer/kernel:0_grad"]) <= MAX_BYTES // GRADIENT


def test_a_queue_that_keeps_the_newest_element_carries_one_out_of_each_call(of_calls):
    sizes, _ = of_calls
    newest, every = millrace.OutfeedQueue("last"), millrace.OutfeedQueue()
    losses, _ = train(newest, 100)
    assert max(sizes) == GRADIENT
    assert train(every, 100)[0] == losses
    last, all_of_them = newest.dequeue(), every.dequeue()
    for key, value in last.items():
        np.testing.assert_array_equal(value, all_of_them[key][-1])
    assert np.abs(last["layer/kernel:0_grad"]).max() > 0


def test_a_filter_that_takes_nothing_costs_nothing(of_calls):
    queue = millrace.MaybeOutfeedQueue(filters=[])
    assert train(queue, 20)[0] == train(None, 20)[0]
    assert of_calls[0] == []
    assert not queue.enqueued


@pytest.mark.parametrize(
    ("when", "replicas"),
    [
        ("before_apply", 1),
        slow("before_apply", 2),
        slow("after_compute", 1),
        slow("after_compute", 2),
    ],
)
def test_calls_of_any_length_have_the_same_numbers(monkeypatch, of_calls, when, replicas):
    sizes, _ = of_calls
    options = {"when": when, "accumulation": 3, "replicas": replicas}
    steps, runs = 3 * 4 * replicas, {}
    for limit in (MAX_BYTES, 1):
        monkeypatch.setattr(entries, "MAX_BYTES", limit)
        queue = millrace.OutfeedQueue()
        runs[limit] = *train(queue, steps, **options), queue.dequeue()
    entry = GRADIENT if when == "before_apply" else GRADIENT * 3 * replicas
    assert sizes[-1] == entry  # a call for each update
    assert max(sizes) == 4 * entry
    losses, weights, elements = zip(*runs.values(), strict=True)
    assert losses[0] == losses[1]
    jax.tree.map(np.testing.assert_array_equal, *weights)
    jax.tree.map(np.testing.assert_array_equal, *elements)
    assert len(elements[0]["layer/bias:0_grad"]) == 2 * (4 if when == "before_apply" else 12)


class Result:
    """What a call returns, with taps of some bytes."""

    def __init__(self, queue, number):
        value = jax.numpy.zeros((1, number // 4))
        self.taps = Taps(steps=Tapped((queue,), (value,)))
        self.steps, self.first, self.updates = 1, 0, 0


class SlowQueue(millrace.OutfeedQueue):
    """Takes an element only when it may."""

    def __init__(self):
        super().__init__()
        self.may, self.number = threading.Semaphore(0), 0

    def receive(self, value, elements):
        """Waits, and counts."""
        self.may.acquire()
        self.number += elements


@pytest.mark.parametrize(("size", "waiting"), [(2**18, 4), (2**21, 1), (4, 16)])
def test_results_wait_by_their_bytes(size, waiting, monkeypatch):
    monkeypatch.setattr(delivery, "MAX_PENDING_BYTES", 2**20)
    queue, handed_over, many = SlowQueue(), [], 20
    outfeed = Delivery()

    def dispatch():
        for number in range(many):
            outfeed.deliver([Result(queue, size)], 1)
            handed_over.append(number)

    thread = threading.Thread(target=dispatch, daemon=True)
    thread.start()
    while len(handed_over) < waiting:  # and no fewer
        thread.join(0.01)
    for delivered in range(many):
        thread.join(0.01)
        assert len(handed_over) <= delivered + waiting
        queue.may.release()
    thread.join(10)
    assert not thread.is_alive()
    outfeed.close()
    assert queue.number == many


def peak_and_bytes(kind, steps):
    script = pathlib.Path(__file__).parent / "peak_script.py"
    environment = {**os.environ, "MILLRACE_CACHE_DIR": "off"}
    done = subprocess.run(
        [sys.executable, str(script), kind, str(steps)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split()[-2:])


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_a_process_needs_memory_for_the_elements_that_wait():
    steps = 400
    without, _ = peak_and_bytes("none", steps)
    peak, elements = peak_and_bytes("queue", steps)
    assert elements == steps * (784 * 128 + 128 + 128 * 10 + 10) * 4
    assert peak - without <= 3 * elements + 200e6
