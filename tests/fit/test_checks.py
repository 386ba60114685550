"""What a compiled loop cannot run, refused with the numbers, before anything is compiled."""

import re
import traceback

import jax
import keras
import numpy as np
import pytest

from millrace.errors import (
    DataError,
    DTypeError,
    ModelError,
    NonFiniteError,
    OptionError,
    PlanError,
)
from own_threads import own_threads

pytestmark = pytest.mark.quick


def build(cls=keras.Sequential, optimizer="sgd", **options):
    model = cls([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


def data(rows):
    return np.ones((rows, 4), np.float32), np.ones((rows, 1), np.float32)


def refuses(strategy, error, message, model, call=None):
    """Expects the error from fit (or `call`), and that nothing was compiled for it."""
    strategy.attach(model)
    call = call or (lambda m: m.fit(*data(80), batch_size=4, verbose=0))
    with pytest.raises(error, match=message):
        call(model)
    assert strategy.compile_log == ()


def accumulate(model, steps):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=steps)
    return model


def test_a_window_that_straddles_executions(strategy):
    model = accumulate(strategy.attach(build(steps_per_execution=8)), 3)
    refuses(
        strategy,
        PlanError,
        r"steps_per_execution=8 is not a whole number.* = 3 x 1 = 3 steps.*has 20 steps.*"
        r"Set steps_per_execution=6",
        model,
    )
    model = accumulate(strategy.attach(build(steps_per_execution=2)), 4)
    refuses(strategy, PlanError, r"steps_per_execution=2 .* 4 steps.*Set .*=4", model)


def test_an_execution_of_a_whole_epoch_may_end_with_a_shorter_window(strategy):
    model = accumulate(strategy.attach(build(steps_per_execution=256)), 3)
    model.fit(*data(80), batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == 7  # six updates of 3 steps, one of 2


@pytest.mark.parametrize("name", ["train", "test", "predict"])
def test_an_overridden_make_function(strategy, name):
    def make(self, force=False):
        raise AssertionError

    cls = type("Own", (keras.Sequential,), {f"make_{name}_function": make})
    message = rf"Own '.*' overrides make_{name}_function\(\).*train_step.*may be overridden"
    refuses(strategy, ModelError, message, build(cls))


class TensorFlowStep(keras.Sequential):
    def train_step(self, data):
        raise AssertionError


def test_a_train_step_that_is_not_a_pure_function(strategy):
    message = r"train_step\(data\).*pure function train_step\(state, data\).*custom_train_step"
    refuses(strategy, ModelError, message, build(TensorFlowStep))


def test_a_step_that_returns_another_state(strategy):
    class Forgets(keras.Sequential):
        def train_step(self, state, data):
            logs, (trainable, non_trainable, optimizer, _) = super().train_step(state, data)
            return logs, (trainable, non_trainable, optimizer, [])

    refuses(strategy, ModelError, r"2 trainable \+ .* 2 metric before, .* 0 metric", build(Forgets))


def test_a_step_that_changes_a_shape(strategy):
    class Grows(keras.Sequential):
        def train_step(self, state, data):
            logs, (trainable, *rest) = super().train_step(state, data)
            return logs, ([trainable[0][None], *trainable[1:]], *rest)

    message = (
        r"Variable 'grows/.*kernel' of .*: one step changed its shape from \(4, 1\) to \(1, 4, 1\)"
    )
    refuses(strategy, ModelError, message, build(Grows))


def test_accumulating_twice(strategy):
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    model = accumulate(strategy.attach(build(optimizer=optimizer, steps_per_execution=4)), 4)
    refuses(
        strategy,
        PlanError,
        r"gradient_accumulation_steps=2 steps.*per_replica=4. Remove gradient_accumulation_steps",
        model,
    )
    inner = keras.optimizers.SGD(gradient_accumulation_steps=2)
    optimizer = keras.optimizers.LossScaleOptimizer(inner)
    model = accumulate(strategy.attach(build(optimizer=optimizer, steps_per_execution=4)), 4)
    refuses(strategy, PlanError, r"gradient_accumulation_steps=2", model)


class Endless(keras.utils.PyDataset):
    num_batches = None

    def __getitem__(self, index):
        return data(4)


def test_endless_data_without_a_number_of_steps(strategy):
    model = build()
    refuses(
        strategy,
        DataError,
        r"never ends, and fit .*steps_per_epoch=None. Set steps_per_epoch in fit\(\)",
        model,
        lambda m: m.fit(Endless(), shuffle=False, verbose=0),
    )
    message = r"evaluate has no number of steps to run: steps=None"
    refuses(strategy, DataError, message, model, lambda m: m.evaluate(Endless(), verbose=0))
    model.fit(Endless(), steps_per_epoch=3, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 3


def test_rows_of_different_lengths(strategy):
    def batches():
        while True:
            yield np.array([[1.0, 2.0], [3.0]], dtype=object), np.ones((2, 1))

    model = build()
    message = r"Leaf 0 of a batch has dtype object.*pad_sequences"
    refuses(
        strategy,
        DataError,
        message,
        model,
        lambda m: m.fit(batches(), steps_per_epoch=2, shuffle=False, verbose=0),
    )


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_keras_distribution_beside_the_strategy(strategy, run_eagerly):
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        model = build()
        model.run_eagerly = run_eagerly
        refuses(strategy, ModelError, r"keras.distribution.set_distribution\(None\)", model)
    finally:
        keras.distribution.set_distribution(None)


def test_run_takes_compiled_functions_of_32_bits(strategy):

    double = jax.jit(lambda x: x * 2)
    np.testing.assert_array_equal(strategy.run(double, [np.ones(3, np.float32)]), 2 * np.ones(3))
    assert strategy.run(double, kwargs={"x": 2}) == 4
    with pytest.raises(OptionError, match=r"plain|compiled function.*Set fn=jax.jit\(fn\)"):
        strategy.run(lambda x: x, [1])
    with pytest.raises(DTypeError, match=r"float64, of shape \(3,\).*astype"):
        strategy.run(double, [np.ones(3)])


def test_one_scope_at_a_time(strategy):
    with strategy.scope(), pytest.raises(PlanError, match="already active"), strategy.scope():
        pass
    with strategy.scope():  # the first one has ended well
        pass


def test_attach_takes_models(strategy):
    with pytest.raises(ModelError, match=r"takes a keras\.Model\. Received: Dense"):
        strategy.attach(keras.layers.Dense(1))


def test_an_exception_of_the_data_set_reaches_fit_with_its_traceback(strategy):
    def batches():
        for _ in range(5):
            yield data(4)
        raise LookupError("file 5 is missing")

    model = strategy.attach(build(steps_per_execution=2))
    with pytest.raises(LookupError, match="file 5 is missing") as caught:
        model.fit(batches(), steps_per_epoch=10, shuffle=False, verbose=0)
    assert "batches" in [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert not own_threads()
    model.fit(*data(8), verbose=0)  # and the model is still usable
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize("how", ["stop", "raise", "finish"])
def test_no_thread_outlives_fit(strategy, how):

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if how == "stop":
                self.model.stop_training = True
            elif how == "raise":
                raise KeyboardInterrupt

    model = strategy.attach(build(steps_per_execution=2))
    try:
        model.fit(*data(80), batch_size=4, verbose=0, callbacks=[Ends()], validation_split=0.2)
    except KeyboardInterrupt:
        assert how == "raise"
    assert not own_threads()


def test_nan_debugging_of_jax_names_the_failure(strategy):

    model = strategy.attach(build(steps_per_execution=4))
    x, y = data(16)
    x[9] = np.nan
    before = model.get_weights()
    jax.config.update("jax_debug_nans", True)
    try:
        message = r"nan came out of 'train_run' over 4 steps.*Set steps_per_execution=1.*NaNWatch"
        with pytest.raises(NonFiniteError, match=message) as caught:
            model.fit(x, y, batch_size=4, verbose=0)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert isinstance(caught.value, FloatingPointError)
    for weight, kept in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, kept)


@pytest.mark.parametrize("failing", [0, 7])
def test_a_failed_run_leaves_the_weights_of_its_last_step(strategy, failing):
    """Keras takes the values out of the variables while it trains."""

    def batches():
        for _ in range(failing):
            yield data(4)
        raise LookupError

    def peeked():  # Keras looks at two batches before it starts
        yield data(4)
        yield data(4)
        yield from batches()

    plain = build()
    model = strategy.attach(build(steps_per_execution=4))
    model.set_weights(plain.get_weights())
    with pytest.raises(LookupError):
        model.fit(peeked(), steps_per_epoch=100, shuffle=False, verbose=0)
    plain.fit(*data(4 * (failing + 2)), batch_size=4, verbose=0)
    assert int(model.optimizer.iterations) == failing + 2
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_keras_default_is_one_update_per_execution_and_is_hinted_at(strategy, caplog, accumulation):
    caplog.set_level("INFO", logger="millrace")
    x, y = np.random.default_rng(0).normal(size=(2, 88, 4)).astype(np.float32)
    own = keras.optimizers.SGD(0.1, gradient_accumulation_steps=None if accumulation == 1 else 4)
    plain, ends = build(optimizer=own), []
    weights = plain.get_weights()
    trained = []
    for options in ({}, {"steps_per_execution": accumulation}):
        model = strategy.attach(build(optimizer=keras.optimizers.SGD(0.1), **options))
        accumulate(model, accumulation).set_weights(weights)
        of_end = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda step, logs: ends.append(step)
        )
        arguments = {"batch_size": 4, "shuffle": False, "verbose": 0}
        model.fit(x, y[:, :1], callbacks=[of_end], **arguments)
        trained.append(model.get_weights())
    hints = [r.getMessage() for r in caplog.records if "per execution" in r.getMessage()]
    what = "one step" if accumulation == 1 else r"one weight update \(4 steps\)"
    assert re.search(rf"runs {what} per execution.* such as {100 * accumulation},", hints[0])
    assert len(hints) == (2 if accumulation == 1 else 1)  # 4 was chosen
    full = list(range(accumulation - 1, 22, accumulation))
    assert ends == 2 * (full if accumulation == 1 else [*full, 21])  # the last update is shorter
    for default, explicit in zip(*trained, strict=True):
        np.testing.assert_array_equal(default, explicit)
    hinted = len(caplog.records)
    model.set_weights(weights)
    model.fit(x[:80], y[:80, :1], **arguments)
    assert "per execution" not in " ".join(caplog.messages[hinted:])  # said once
    plain.fit(x[:80], y[:80, :1], **arguments)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
