"""The lock of a trace: threads wait for those that trace the same model, and for no others."""

import threading
import time

import keras
import numpy as np

import millrace

layers = keras.layers
SECONDS = 60  # until a test gives up; none takes that long where nothing waits


def in_threads(*functions):
    """Runs functions at the same time."""
    errors = []

    def call(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(each,), daemon=True) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def data(rows=8):
    return np.ones((rows, 3), np.float32), np.zeros((rows, 1), np.float32)


def trained(loss):
    """Returns a model whose layers have a loss of their own."""
    dense = layers.Dense(1, kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((3,)), dense])
    model.compile("sgd", loss, steps_per_execution=2)
    return model


def test_two_models_are_traced_at_the_same_time():
    events = threading.Event(), threading.Event()
    met = []

    def fit(own, other):
        def loss(y, p):
            events[own].set()
            met.append(events[other].wait(SECONDS))
            return (y - p) ** 2

        with millrace.Strategy(1).scope():
            model = trained(loss)
        model.fit(*data(), batch_size=4, verbose=0)

    in_threads(lambda: fit(0, 1), lambda: fit(1, 0))
    assert met
    assert all(met)


def test_one_model_is_traced_by_one_thread_at_a_time():
    active, most = [], []

    def loss(y, p):
        active.append(None)
        time.sleep(0.05)
        most.append(len(active))
        active.pop()
        return (y - p) ** 2

    strategy = millrace.Strategy(1)
    with strategy.scope():
        model = trained(loss)
    model.precompile((((4, 3), "float32"), ((4, 1), "float32")))
    assert len(most) > 1  # for training and for validation
    assert set(most) == {1}
