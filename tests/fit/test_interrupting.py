"""Ctrl-C while a slow data set is making a batch: at once, and what was trained is kept."""

import signal
import threading
import time

import keras
import numpy as np
import pytest

from millrace.programs.feeds import infeed

X, Y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
SLOW_SECONDS = 60.0  # for a batch: nobody may wait for it


@pytest.fixture
def model(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    model.set_infeed_queue_options(prefetch_depth=1)
    model.fit(((X, Y) for _ in range(2)), steps_per_epoch=2, verbose=0, shuffle=False)  # compiles
    model.optimizer.iterations.assign(0)
    return model


def interrupted(model, batches, **options):
    """Fits until the interrupt that the data set sends."""
    with pytest.raises(KeyboardInterrupt):
        model.fit(batches, verbose=0, shuffle=False, **options)


def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


@pytest.mark.parametrize("options", [{"steps_per_epoch": 8}, {}], ids=["known", "unknown"])
def test_the_interrupt_does_not_wait_for_a_batch(model, options, monkeypatch):
    monkeypatch.setattr(infeed, "JOIN_SECONDS", SLOW_SECONDS)
    made, ended = [], threading.Event()

    def batches():
        for k in range(8):
            if k == 6:
                interrupt()
                ended.wait(SLOW_SECONDS)
                made.append(k)
            yield X, Y

    interrupted(model, batches(), **options)
    assert not made
    ended.set()
    iterations = int(model.optimizer.iterations)
    assert iterations in (0, 2, 4, 6)
    model.fit(X, Y, batch_size=4, verbose=0)  # the model is as good as before
    assert int(model.optimizer.iterations) == iterations + 1


def test_updates_of_finished_executions_are_kept(model):
    def batches():
        for k in range(8):
            while k == 4 and not seen:  # the execution of the first batches has been run
                time.sleep(0.01)
            if k == 4:
                interrupt()
            yield X, Y

    seen = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(1))
    interrupted(model, batches(), steps_per_epoch=8, callbacks=[callback])
    assert int(model.optimizer.iterations) >= 2
    assert np.isfinite(model.get_weights()[0]).all()


def test_the_same_generator_goes_on_after_the_batch_that_was_interrupted(model):
    drawn, out = [], threading.Event()

    def batches():
        for k in range(100):
            drawn.append(k)
            if k == 5:
                interrupt()
                out.wait(SLOW_SECONDS)
                time.sleep(0.2)  # the next fit has begun
            yield X, Y

    generator = batches()
    interrupted(model, generator, steps_per_epoch=10)
    out.set()
    model.fit(
        generator, steps_per_epoch=4, verbose=0, shuffle=False
    )  # not "generator already executing"
    assert len(drawn) < 20  # the thread drew no more than it had begun
