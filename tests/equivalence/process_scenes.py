"""What each of two processes does in `test_processes.py`: `process_scenes.py scene [argument]`.

Files are written to the working directory.
"""

import functools
import logging
import os
import signal
import sys
import time

import millrace

millrace.distributed.initialize()

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from millrace.base.records.run import load  # noqa: E402
from millrace.errors import PlanError  # noqa: E402
from millrace.run.processes.agreement import check_same  # noqa: E402

PROCESS = jax.process_index()
X = np.ones((64, 4), "float32")


def two_layers(units=4):
    return [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)]


def small_model(make=two_layers, **options):
    with millrace.Strategy(**options).scope():
        model = keras.Sequential(make())
    model.compile("sgd", "mse", steps_per_execution=4)
    return model


def cut(model, stages=(0, 1), accumulation=4):
    model.set_pipeline_stage_assignment(list(stages))
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
    return model


def fit(model, **options):
    return model.fit(X, X[:, :1], batch_size=4, **{"verbose": 0, **options}).history


# Processes that differ


def other_weights():
    model = small_model()
    model.layers[0].bias.assign(model.layers[0].bias + PROCESS)
    fit(cut(model))


def other_options():
    fit(cut(small_model(), accumulation=4 - 2 * PROCESS))


def other_model():
    fit(cut(small_model(lambda: two_layers(1 + PROCESS))))


def other_weights_of_a_model_that_fit_builds():
    keras.utils.set_random_seed(PROCESS)
    fit(cut(small_model(lambda: two_layers()[1:])))


def other_model_that_fit_builds():
    keras.utils.set_random_seed(PROCESS)
    fit(cut(small_model(lambda: two_layers(4 + PROCESS)[1:])))


def device_of_the_first_process():
    millrace.Strategy(devices=[jax.devices()[0]])


def death(victim):
    class Die(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2 and int(victim) == PROCESS:
                os.kill(os.getpid(), signal.SIGKILL)

    saves = keras.callbacks.ModelCheckpoint("model.keras")
    fit(cut(small_model()), epochs=1000, callbacks=[saves, Die()])


def progress():
    """Plans are for one process; the log of `fit` says so."""
    logging.basicConfig(level=logging.INFO)
    history = fit(cut(small_model(memory="1GB")), epochs=2, verbose="auto")
    print(PROCESS, sorted(history))


# A stage whose first step fails


class Failing(keras.layers.Layer):
    is_failing = True

    def look(self, x):
        if self.is_failing:
            raise ValueError("not one of the rows that were asked for")
        return x

    def call(self, x):
        spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
        looked = jax.pure_callback(self.look, spec, jax.lax.stop_gradient(x))
        return keras.layers.Identity()(x) + 0 * jax.lax.stop_gradient(looked)


def failing_model():
    inputs, *layers = two_layers()
    return small_model(lambda: [inputs, Failing(), *layers])


def caught(model, out):
    try:
        fit(model)
    except Exception as error:
        print("caught", type(error).__name__, error, file=out, flush=True)


def failure():
    caught(failing_model(), sys.stdout)


def failure_and_another_fit():
    out = open(f"process-{PROCESS}", "w") if PROCESS else sys.stdout  # noqa: SIM115
    model = cut(failing_model(), (0, 0, 1))
    caught(model, out)
    Failing.is_failing = False
    losses = fit(model, epochs=2)["loss"]
    print("again", PROCESS, losses[1] < losses[0], file=out, flush=True)


# A pipeline that becomes a plain model again


def detached():
    x = np.random.default_rng(0).normal(size=(64, 3, 4)).astype("float32")

    def build():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((None, 4)), *layers])

    def losses_of(model, rows):
        options = {"batch_size": rows, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(x, x[..., :1], **options).history["loss"]

    strategy, plain = millrace.Strategy(), build()
    with strategy.scope():
        model = build()
    for each in (plain, model):
        each.compile("adam", "mse", steps_per_execution=4 if each is model else 1)
    # For the lengths of the first batch.
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    losses = losses_of(model, 8)
    strategy.detach(model)
    assert all(variable.value.is_fully_addressable for variable in model.variables)
    expected = losses_of(plain, 32) + losses_of(plain, 32)
    np.testing.assert_allclose(losses + losses_of(model, 32), expected, 1e-5)
    for found, weights in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, weights, 1e-5, 1e-6)


# Recomputation within a budget


def budgeted(strategy=None, budget=None, fewer=0, **options):
    """Returns losses and weights: of plain Keras, where there is no strategy."""
    x = np.random.default_rng(0).normal(size=(4096, 16)).astype("float32")
    keras.utils.set_random_seed(1)
    hidden = [keras.layers.Dense(32, "tanh") for _ in range(6 - fewer)]
    layers = [keras.Input((16,)), *hidden, keras.layers.Dense(1)]
    if strategy is None:
        model = keras.Sequential(layers)
    else:
        with strategy.scope():
            model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=8 if strategy else 1)
    if strategy is not None:
        model.set_pipeline_stage_assignment([0] * 4 + [1] * (3 - fewer))
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=8, **options)
        model.set_recomputation_options(budget=budget)
    rows = 256 if strategy else 2048
    losses = model.fit(x, x[:, :1], batch_size=rows, epochs=2, shuffle=False, verbose=0)
    return losses.history["loss"], model.get_weights()


def chosen(strategy):
    (choice,) = strategy.statistics().budgets
    return choice.choice, choice.peak_bytes


def everywhere():
    return millrace.Strategy(devices=[jax.devices()[0], jax.devices()[2]])


def budgets():
    plain = budgeted()
    for options in ({}, {"fewer": 2, "pipeline_schedule": "gpipe"}):
        local, over_both = millrace.Strategy(devices=jax.local_devices()[:2]), everywhere()
        losses, weights = budgeted(local, 0.75, **options)
        found, kept = budgeted(over_both, 0.75, **options)
        print("chosen:", *chosen(over_both), chosen(local), flush=True)
        assert found == losses
        for one, other in zip(kept, weights, strict=True):
            np.testing.assert_array_equal(one, other)
        if "fewer" not in options:
            np.testing.assert_allclose(found, plain[0], 1e-6)
            for one, other in zip(kept, plain[1], strict=True):
                np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    try:
        budgeted(everywhere(), 1000)
    except PlanError as error:
        print("refused:", error, flush=True)
    budgeted(everywhere(), 0.75)  # all can go on


# The seconds of a pipeline


def wide_model(strategy, **options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(256, "tanh") for _ in range(6)]
    with strategy.scope():
        model = keras.Sequential([keras.Input((256,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=160)
    model.set_pipeline_stage_assignment([0] * 3 + [1] * 4)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=8, **options)
    return model


@functools.cache
def wide_data():
    return np.random.default_rng(0).normal(size=(64 * 8 * 20, 256)).astype("float32")


def fit_wide(model, rows=None):
    x = wide_data()[:rows]
    return model.fit(x, x[:, :1], batch_size=64, shuffle=False, verbose=0).history["loss"]


def assert_seconds_add_up(strategy, model):
    before = strategy.statistics().pipeline.seconds
    for _ in range(3):
        fit_wide(model)
    after = strategy.statistics().pipeline.seconds
    assert after.updates - before.updates == 60
    spent = {k: v - before.parts.get(k, 0.0) for k, v in after.parts.items()}
    assert set(spent) == {"waiting for devices", "dispatch", "waiting for data"}
    assert all(seconds >= 0 for seconds in spent.values()), spent
    assert spent["waiting for devices"] > 0, spent
    assert spent["dispatch"] > 0, spent


def assert_records_have_the_seconds(strategy, directory):
    check_same({"written": "by all"})
    loops = [loop for loop in load(directory).loops if loop.process == PROCESS]
    for name, seconds in strategy.statistics().pipeline.seconds.parts.items():
        recorded = sum(loop.update_seconds.get(name, 0.0) for loop in loops)
        assert abs(recorded - seconds) < 1e-6, (name, recorded, seconds)
    assert {loop.process for loop in load(directory).loops if loop.update_seconds} == {0, 1}


def assert_refused(what, model, **options):
    with pytest.raises(PlanError, match=f"do not have the same {what}"):
        fit_wide(model, **options)


def seconds():
    weights = {}
    for schedule, held in (("auto", (3, 1)), ("1f1b", (2, 1)), ("gpipe", (8, 8))):
        strategy = millrace.Strategy(report_dir=schedule if schedule == "gpipe" else None)
        model = wide_model(strategy, pipeline_schedule=schedule)
        fit_wide(model)
        assert strategy.statistics().pipeline.last_in_flight[PROCESS] == held[PROCESS], schedule
        assert_seconds_add_up(strategy, model)
        weights[schedule] = model.get_weights()
        before, begin = strategy.statistics().pipeline.seconds.total, time.perf_counter()
        fit_wide(model)
        wall = time.perf_counter() - begin
        assert 0 < strategy.statistics().pipeline.seconds.total - before < wall
        print(strategy.statistics())
    for schedule in ("auto", "gpipe"):
        for one, other in zip(weights[schedule], weights["1f1b"], strict=True):
            np.testing.assert_array_equal(one, other)
    assert_records_have_the_seconds(strategy, "gpipe")

    # Weights that one process has set anew, to what they were, are no difference; others are one.
    bias = model.layers[0].bias
    if PROCESS == 0:
        model.set_weights(model.get_weights())
    fit_wide(model)
    if PROCESS == 0:
        bias.assign(bias + 1)
    assert_refused("weights", model)
    if PROCESS == 1:
        bias.assign(bias + 1)
    # Data of which only the last batch differs.
    assert_refused("last batch", model, rows=640 - PROCESS)
    fit_wide(model, rows=640)


globals()[sys.argv[1]](*sys.argv[2:])
