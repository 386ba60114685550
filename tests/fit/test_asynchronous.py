import time

import keras
import numpy as np
import pytest

from millrace.errors import OptionError, PlanError
from own_threads import own_threads


class Recorder(keras.callbacks.Callback):
    """Notes every call with its time and thread."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def note(self, name, step, logs=None):
        self.calls.append((name, step, dict(logs or {}), time.perf_counter()))

    def on_train_batch_begin(self, batch, logs=None):
        self.note("begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self.note("end", batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test", batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        self.note("predict", batch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch", epoch, logs)

    def steps(self, name):
        return [step for n, step, _, _ in self.calls if n == name]


def build(steps_per_execution):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], steps_per_execution=steps_per_execution)
    return model


def data(rows):
    random = np.random.default_rng(0)
    return random.random((rows, 4), np.float32), random.random((rows, 1), np.float32)


def test_every_step_is_delivered_in_order(strategy):
    model = strategy.attach(build(32))
    model.set_asynchronous_callbacks(True)
    recorder = Recorder()
    model.fit(*data(64 * 2), batch_size=2, epochs=2, verbose=0, callbacks=[recorder])
    names = [(name, step) for name, step, _, _ in recorder.calls]
    epoch = [(name, step) for step in range(64) for name in ("begin", "end")]
    assert names == [*epoch, ("epoch", 0), *epoch, ("epoch", 1)]


@pytest.mark.parametrize("rows", [80, 83])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_logs_of_a_step_are_those_of_one_step_per_execution(strategy, rows, accumulation):
    x, y = data(rows)
    stock = Recorder()
    reference = strategy.attach(build(accumulation))
    if accumulation == 1:
        reference = build(1)
    recorded = Recorder()
    model = strategy.attach(build(8))
    for m in (reference, model):
        if hasattr(m, "set_gradient_accumulation_options"):
            m.set_gradient_accumulation_options(
                gradient_accumulation_steps_per_replica=accumulation
            )
    model.set_asynchronous_callbacks(True)
    reference.fit(x, y, batch_size=4, verbose=0, shuffle=False, callbacks=[stock])
    model.fit(x, y, batch_size=4, verbose=0, shuffle=False, callbacks=[recorded])
    assert recorded.steps("end") == list(range(-(-rows // 4)))
    delivered = {step: logs for name, step, logs, _ in recorded.calls if name == "end"}
    for name, step, logs, _ in stock.calls:
        if name == "end":
            for key, value in logs.items():
                np.testing.assert_allclose(delivered[step][key], value, rtol=1e-6)


@pytest.mark.slow
def test_steps_arrive_while_the_execution_runs(strategy):
    """When the first step is delivered, the weights after the last one do not exist yet."""
    ready = []

    class Looks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights = self._model._jax_state["trainable_variables"]  # past the property: no sync
            ready.append(weights[0].is_ready())

    keras.utils.set_random_seed(1)
    wide = [keras.layers.Dense(1024, "relu") for _ in range(4)]
    model = strategy.attach(keras.Sequential([keras.Input((1024,)), *wide]))
    model.compile("sgd", "mse", steps_per_execution=48)
    model.set_asynchronous_callbacks(True)
    x = np.zeros((48 * 16, 1024), np.float32)
    model.fit(x, x, batch_size=16, verbose=0, callbacks=[Looks()])
    assert len(ready) == 48
    assert not ready[0]


def test_evaluate_and_predict_deliver_every_step(strategy):
    x, y = data(42)
    model = strategy.attach(build(8))
    plain = model.predict(x, batch_size=4, verbose=0)
    model.set_asynchronous_callbacks(True)
    recorder = Recorder()
    evaluated = model.evaluate(x, y, batch_size=4, verbose=0, callbacks=[recorder])
    predicted = model.predict(x, batch_size=4, verbose=0, callbacks=[recorder])
    np.testing.assert_array_equal(predicted, plain)
    assert recorder.steps("test") == recorder.steps("predict") == list(range(11))
    outputs = [logs["outputs"] for name, _, logs, _ in recorder.calls if name == "predict"]
    np.testing.assert_array_equal(np.concatenate(outputs), plain)
    model.set_asynchronous_callbacks(False)
    np.testing.assert_allclose(evaluated, model.evaluate(x, y, batch_size=4, verbose=0))


def test_what_a_callback_raises_is_raised_by_fit(strategy):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise KeyError("no such metric")

    model = strategy.attach(build(8))
    model.set_asynchronous_callbacks(True)
    with pytest.raises(KeyError, match="no such metric"):
        model.fit(*data(80), batch_size=4, verbose=0, callbacks=[Fails()])
    assert not own_threads()


def test_stop_training_acts_after_the_running_execution(strategy):
    class Stops(Recorder):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            if batch == 3:
                self.model.stop_training = True

    model = strategy.attach(build(8))
    model.set_asynchronous_callbacks(True)
    stops = Stops()
    model.fit(*data(80), batch_size=4, epochs=4, verbose=0, callbacks=[stops])
    assert stops.steps("end") == list(range(8))
    assert int(model.optimizer.iterations) == 8


def test_history_and_weights_are_those_of_plain_training(strategy):
    x, y = data(80)
    plain, model = build(8), strategy.attach(build(8))
    model.set_asynchronous_callbacks(True)
    histories = []
    for m in (plain, model):
        keras.utils.set_random_seed(2)
        histories.append(m.fit(x, y, batch_size=4, epochs=3, verbose=0, validation_split=0.2))
    for key, values in histories[0].history.items():
        np.testing.assert_allclose(histories[1].history[key], values, rtol=1e-6)


def test_the_progress_bar_sees_every_step(strategy, capsys):
    model = strategy.attach(build(5))
    model.set_asynchronous_callbacks(True)
    model.fit(*data(80), batch_size=4, verbose=1)
    assert "20/20" in capsys.readouterr().out


class StopsAt(keras.callbacks.Callback):
    """Stops training at one step, and keeps the weights that the model has then."""

    def __init__(self, step):
        super().__init__()
        self.step = step
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)
        if batch == self.step:
            self.model.stop_training = True


@pytest.mark.parametrize(("within", "steps"), [(1, 7), (4, 8), (None, 20)])
def test_training_stops_with_the_state_of_the_step_that_asked_for_it(strategy, within, steps):
    model = strategy.attach(build(20))
    model.set_asynchronous_callbacks(True, stop_within=within)
    watcher = StopsAt(6)
    x, y = data(40 * 8)
    model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[watcher])
    assert watcher.seen == list(range(steps))
    assert int(model.optimizer.iterations) == steps
    plain = build(1)
    plain.fit(x[: steps * 8], y[: steps * 8], batch_size=8, shuffle=False, verbose=0)
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def test_a_stop_within_an_update_is_refused(strategy):
    model = strategy.attach(build(8))
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=4)
    model.set_asynchronous_callbacks(True, stop_within=6)
    with pytest.raises(PlanError, match=r"stop_within=6 .* Set stop_within=4"):
        model.fit(*data(64), batch_size=8, verbose=0)
    with pytest.raises(OptionError, match="needs callbacks for every step"):
        model.set_asynchronous_callbacks(False, stop_within=4)
