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

import millrace
from millrace._compat.patches import patches_in
from millrace.base import interrupts

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X[:, :1].copy()
MOMENTS = 40


def net(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=2)
    return model


def pipeline():
    model = net(millrace.Strategy(devices="cpu:2"))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    model.set_pipeline_stage_assignment([0, 1])
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


def interrupted(call, number=None, times=1):
    """Calls, with Ctrl-C at the call of this number.

    Args:
        call: to be interrupted.
        number: of the call of a function.
        times: signals there; as if a second one came much later than the first.

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
        if counted == number and times == 1:
            signal.raise_signal(signal.SIGINT)
        elif counted == number:
            # The signal would be handled in this hook, and not in the frame that it interrupts.
            handle = signal.getsignal(signal.SIGINT)
            for _ in range(times):
                handle(0, frame)

    try:
        sys.setprofile(hook)
        try:
            call()
        finally:
            sys.setprofile(None)
    except KeyboardInterrupt:
        return counted, True
    return counted, False


def check_whole(model, updates=6):
    before = int(model.optimizer.iterations)
    weights = model.get_weights()
    assert all(np.isfinite(each).all() for each in weights)
    model.fit(X, Y, batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == before + updates
    assert not all(map(np.array_equal, weights, model.get_weights()))


def check_at_many_moments(call, check, times=1):
    total, _ = interrupted(call)
    sent = 0
    for number in range(1, total, total // MOMENTS):
        counted, came = interrupted(call, number, times)
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


@pytest.mark.parametrize("build", [net, pipeline])
def test_a_second_one_loses_no_weights(build, strategy, monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE_SECONDS", -1.0)
    model = build(strategy) if build is net else build()
    updates = 6 if build is net else 3

    def call():
        model.fit(X, Y, batch_size=4, verbose=0)

    call()
    call()
    check_at_many_moments(call, lambda: check_whole(model, updates), times=2)
