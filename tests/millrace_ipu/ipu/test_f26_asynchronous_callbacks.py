import logging

import jax
import keras
import numpy as np
import pytest
from linear_models import linear, rows, two_stages

from millrace.programs.plan import Mode
from millrace_ipu.ipu.ipu_strategy import IPUStrategy


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls, self.losses, self.epoch_losses = [], [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.calls.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.calls.append(("end", batch))
        self.losses.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("epoch", epoch))
        self.epoch_losses.append(logs["loss"])


@pytest.mark.parametrize("devices", [1, 2])
def test_f26_every_step_is_called_back_in_order(devices, system):
    system(devices)
    model = linear(IPUStrategy(), 32)
    model.set_asynchronous_callbacks(True)
    calls = Calls()
    model.fit(*rows(64), batch_size=1, epochs=2, verbose=0, callbacks=[calls])
    steps = [pair for k in range(64) for pair in (("begin", k), ("end", k))]
    assert calls.calls == [pair for epoch in range(2) for pair in (*steps, ("epoch", epoch))]
    assert calls.epoch_losses == [calls.losses[63], calls.losses[127]]


def test_f26_steps_are_called_back_while_the_execution_runs(system):
    system(1)
    with IPUStrategy().scope():
        layers = [keras.layers.Dense(256) for _ in range(2)]
        model = keras.Sequential([keras.Input((256,)), *layers])
        model.compile("sgd", "mse", steps_per_execution=32)
    model.set_asynchronous_callbacks(True)
    was_running = []

    def look(batch, logs):
        *_, last = model._millrace.functions.compiled[Mode.TRAIN].calls
        was_running.append(not all(leaf.is_ready() for leaf in jax.tree.leaves(last.result)))

    data = np.zeros((32 * 512, 256), "float32")
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    model.fit(data, data, batch_size=512, verbose=0, callbacks=[watch])
    assert was_running[0]
    assert not was_running[-1]


def test_f26_an_error_of_a_callback_ends_fit(system):
    def fail(batch, logs):
        raise KeyError(batch)

    model = linear(IPUStrategy(), 4)
    model.set_asynchronous_callbacks(True)
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=fail)
    with pytest.raises(KeyError, match="0"):
        model.fit(*rows(4), batch_size=1, verbose=0, callbacks=[watch])


def test_f26_accumulated_outfeeds_are_delivered_per_update(system, caplog):
    system(2)
    model = two_stages(IPUStrategy(), 8)
    model.set_pipelining_options(4, accumulate_outfeed=True)
    model.set_asynchronous_callbacks(True)
    calls = Calls()
    with caplog.at_level(logging.INFO, "millrace"):
        model.fit(*rows(8), batch_size=1, verbose=0, callbacks=[calls])
    assert calls.calls == [("begin", 0), ("end", 7), ("epoch", 0)]
    assert "set_asynchronous_callbacks(True) is ignored there" in caplog.text
    seen = []
    watch = keras.callbacks.LambdaCallback(on_predict_batch_end=lambda b, logs: seen.append(b))
    model.predict(rows(8)[0], batch_size=1, verbose=0, callbacks=[watch])
    assert seen == list(range(8))


def test_f26_only_true_and_false_are_accepted():
    with pytest.raises(ValueError, match=r"asynchronous must be True or False. Received: 1"):
        linear(IPUStrategy()).set_asynchronous_callbacks(1)
