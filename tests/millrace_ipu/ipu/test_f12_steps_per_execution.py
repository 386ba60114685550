import logging

import keras
import numpy as np
import pytest
from linear_models import linear, rows

from millrace_ipu.ipu.ipu_strategy import IPUStrategy


class Steps(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.begun, self.ended = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(batch)


def fitted(steps_per_execution, x, y, **arguments):
    model = linear(IPUStrategy(), steps_per_execution)
    steps = Steps()
    arguments = {"batch_size": 2, "epochs": 2, "shuffle": False, "verbose": 0, **arguments}
    history = model.fit(x, y, callbacks=[steps], **arguments).history
    return model, history, steps


def test_f12_executions_of_any_length_give_the_same():
    x, y = rows(40)
    one, wanted, _ = fitted(1, x, y)
    ten, actual, steps = fitted(10, x, y)
    assert actual == wanted
    np.testing.assert_array_equal(one.get_weights()[0], ten.get_weights()[0])
    assert steps.ended == [9, 19] * 2


def test_f12_longer_than_the_epoch_is_the_epoch():
    x, y = rows(128)
    model, _, steps = fitted(256, x, y, batch_size=1)
    assert (steps.begun, steps.ended) == ([0, 0], [127, 127])
    assert int(model.optimizer.iterations) == 256  # 128 batches in each epoch


def test_f12_replicas_share_an_execution(system):
    system(4)
    x, y = rows(24)
    with pytest.raises(
        RuntimeError,
        match=r"steps_per_execution=6 of .* must be a multiple of the number of replicas, 4. It "
        r"counts the batches of all 4 replicas, as release 2.4 did; an epoch has 12\. "
        r".* Set steps_per_execution to 4 or 12",
    ):
        fitted(6, x, y)
    with pytest.raises(RuntimeError, match=r"=16, truncated to the 6 steps of the epoch, .*, 4\."):
        fitted(16, x[:12], y[:12])


def test_f12_evaluate_and_predict_have_executions_too(system):
    system(2)
    x, y = rows(8)
    model = linear(IPUStrategy(), 3)
    for run in (lambda: model.evaluate(x, y, 2, 0), lambda: model.predict(x, 2, 0)):
        with pytest.raises(RuntimeError, match=r"steps_per_execution=3 of .* replicas, 2"):
            run()


def test_f12_errors_of_evaluate_and_predict_name_steps(system):
    system(2)
    model = linear(IPUStrategy(), 8)
    x, y = rows(6)
    for call in (
        lambda: model.evaluate(x, y, batch_size=2),
        lambda: model.predict(x, batch_size=2),
    ):
        with pytest.raises(RuntimeError, match=r"steps=2; .* set steps_per_execution to 2"):
            call()
    model.steps_per_execution = 4
    with pytest.raises(ValueError, match=r"The epoch has 6 steps.*Set steps_per_execution to 2"):
        model.predict(x, batch_size=1)


def test_f12_one_step_of_a_replica_logs_a_hint(system, caplog):
    system(2)
    with caplog.at_level(logging.INFO, "millrace"):
        fitted(2, *rows(8), epochs=1)
    assert "runs one step per execution and replica. Set steps_per_execution" in caplog.text
