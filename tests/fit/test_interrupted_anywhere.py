"""Ctrl-C at any moment of a loop: KeyboardInterrupt comes out, and the model trains on.

A hook counts the calls of the main thread and sends the signal at one of them: which one does not
depend on how fast the machine is. It counts where Python itself looks for signals: as a function
of Python begins, and as one of C has ended. There can be none where a lock's `__exit__` is called,
nor where a generator is closed that is given up.
"""

import inspect
import signal
import sys
import threading

import keras
import numpy as np
import pytest

from millrace._compat.patches import patches_in

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X[:, :1].copy()
MOMENTS = 40


def net(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=2)
    return model


def batches():
    while True:
        yield X[:4], Y[:4]


def on_batches(model):
    model.reset_metrics()
    for _ in range(3):
        model.train_on_batch(X[:4], Y[:4])


LOOPS = {
    "fit": lambda m: m.fit(X, Y, batch_size=4, validation_data=(X, Y), verbose=0),
    "fit a generator": lambda m: m.fit(batches(), steps_per_epoch=6, shuffle=False, verbose=0),
    "evaluate": lambda m: m.evaluate(X, Y, batch_size=4, verbose=0),
    "predict": lambda m: m.predict(X, batch_size=4, verbose=0),
    "train_on_batch": on_batches,
}


def interrupted(call, number=None):
    """Calls, with Ctrl-C at the call of this number.

    Returns:
        How many calls there were, and whether Ctrl-C came out.
    """
    counted = 0

    def hook(frame, event, argument):
        nonlocal counted
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if event != "c_return" and (event != "call" or is_generator):
            return
        counted += 1
        if counted == number:
            signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(hook)
        try:
            call()
        finally:
            sys.setprofile(None)
    except KeyboardInterrupt:
        return counted, True
    return counted, False


def check_whole(model):
    before = int(model.optimizer.iterations)
    weights = model.get_weights()
    assert all(np.isfinite(each).all() for each in weights)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == before + 6
    assert not all(map(np.array_equal, weights, model.get_weights()))


def check_at_many_moments(call, check):
    total, _ = interrupted(call)
    sent = 0
    for number in range(1, total, total // MOMENTS):
        counted, came = interrupted(call, number)
        assert came == (counted >= number)  # how often one waits for data differs a little
        sent += came
        check()
    assert sent > MOMENTS / 2
    other = threading.Thread(target=patches_in, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()  # which would wait for a lock that was left behind
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_is_compiled(strategy, loop):
    model = net(strategy)
    model.fit(X, Y, batch_size=4, verbose=0)
    LOOPS[loop](model)
    check_at_many_moments(lambda: LOOPS[loop](model), lambda: check_whole(model))
