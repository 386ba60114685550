import keras
from linear_models import linear, rows

from millrace_ipu.ipu.ipu_strategy import IPUStrategy

STEPS = 96
BEGUN, ENDED = list(range(0, STEPS, 16)), list(range(15, STEPS, 16))


class Calls(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls, self.keys = [], set()

    def _note(self, name, step, logs):
        self.calls.append((name, step))
        self.keys |= set(logs or ())

    def on_train_batch_begin(self, batch, logs=None):
        self._note("begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        self._note("end", batch, logs)

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin
    on_test_batch_end = on_predict_batch_end = on_train_batch_end


def test_f25_one_begin_and_one_end_for_each_execution():
    x, y = rows(STEPS)
    model = linear(IPUStrategy(), 16)
    wanted = [pair for k in range(6) for pair in (("begin", BEGUN[k]), ("end", ENDED[k]))]
    for loop, data, keys in (
        (model.fit, (x, y), {"loss"}),
        (model.evaluate, (x, y), {"loss"}),
        (model.predict, (x,), {"outputs"}),
    ):
        calls = Calls()
        loop(*data, batch_size=1, verbose=0, callbacks=[calls])
        assert calls.calls == wanted
        assert calls.keys == keys


def test_f25_training_stops_between_executions():
    x, y = rows(STEPS)
    calls = Calls()
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch >= 31)
    )
    model = linear(IPUStrategy(), 16)
    model.fit(x, y, batch_size=1, epochs=2, verbose=0, callbacks=[calls, stop])
    assert int(model.optimizer.iterations) == 32
    assert calls.calls[-1] == ("end", 31)
