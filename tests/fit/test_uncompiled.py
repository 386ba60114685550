"""Models that are not to be compiled: Keras's own loop runs them under a strategy."""

import contextlib
import logging

import jax
import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from for_versions import needs_keras
from millrace.callbacks import NaNWatch, TensorStatistics
from millrace.errors import ModelError, PlanError

X = np.random.default_rng(1).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
DATA = {"batch_size": 4, "verbose": 0}
FIT = {**DATA, "shuffle": False}


class Seen(keras.layers.Layer):
    """Notes values, which only an eager step has."""

    def __init__(self, notes):
        super().__init__()
        self.note = notes.append  # Keras would copy a list

    def call(self, x):
        if not isinstance(x, jax.core.Tracer):
            self.note(*x.devices())
        return x


class OnHost(keras.layers.Layer):
    """Computes with NumPy."""

    def __init__(self):
        super().__init__(name="on_host")
        self.supports_jit = False

    def call(self, x):
        return x if isinstance(x, jax.core.Tracer) else jax.numpy.asarray(np.asarray(x) * 2)

    def compute_output_shape(self, shape):
        return shape


def build(strategy=None, *layers, **compilation):
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compilation)
    return model


def everything(model):
    """Runs every loop, and returns what came of it."""
    x, y = X[:4], Y[:4]  # one shape: every operation of it is compiled by itself
    found = [model.fit(X, Y, epochs=2, validation_data=(X[:8], Y[:8]), **DATA).history]
    found += [model.evaluate(X, Y, **DATA), model.predict(X, **DATA)]
    found += [model.train_on_batch(x, y), model.test_on_batch(x, y), model.predict_on_batch(x)]
    return [found, model.get_weights()]


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)


@pytest.mark.parametrize(
    "compilation",
    [
        slow({"run_eagerly": True}),
        {"jit_compile": False},
        pytest.param(
            {"jit_compile": False, "steps_per_execution": 2},
            marks=needs_keras("<3.16", reason="takes the rows of train_on_batch for steps"),
        ),
        {"run_eagerly": True, "jit_compile": True},
    ],
)
def test_every_loop_is_that_of_keras(strategy, compilation, recwarn):
    found = everything(build(strategy, **compilation))
    assert_same(found, everything(build(**compilation)))
    assert strategy.statistics().executions == 0


def test_a_layer_that_cannot_be_compiled(strategy):
    assert_same(*[everything(build(owner, OnHost())) for owner in (strategy, None)])


def test_predict_without_compile(strategy):
    found = []
    for owner in (strategy, None):
        with contextlib.nullcontext() if owner is None else owner.scope():
            model = keras.Sequential([OnHost()])
        found.append(model.predict(X, **DATA))
    assert_same(*found)
    np.testing.assert_array_equal(found[0], 2 * X)


def test_one_line_says_so(strategy, caplog):
    model = build(strategy, run_eagerly=True)
    with caplog.at_level(logging.INFO, "millrace"):
        everything(model)
    lines = [r.getMessage() for r in caplog.records if r.name == "millrace"]
    assert len(lines) == 1
    assert "run_eagerly=True, so Keras's own loop runs it, one step at a time" in lines[0]


def test_it_runs_on_the_device_of_the_strategy():
    device = jax.devices()[1]
    notes = []
    model = build(millrace.Strategy(devices=[device]), Seen(notes), jit_compile=False)
    model.predict(X, **DATA)
    assert notes[-3:] == [device] * 3


def test_changing_between_both(strategy):
    notes = []
    model, stock = [build(owner, Seen(notes)) for owner in (strategy, None)]
    histories = []
    for eager in (False, True, False):
        model.run_eagerly = eager  # without another compile()
        notes.clear()
        histories.append(model.fit(X, Y, **FIT).history)
        assert len(notes) == (3 if eager else 0)
    executions = strategy.statistics().executions
    assert executions > 0
    assert_same(histories, [stock.fit(X, Y, **FIT).history for _ in range(3)])
    model.compile("sgd", "mse", run_eagerly=True)
    notes.clear()
    model.fit(X, Y, **DATA)
    assert notes
    assert strategy.statistics().executions == executions


def accumulate(model):
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=3)


def recompute(model):
    model.set_recomputation_options(mode="auto")


def recompute_by_budget(model):
    model.set_recomputation_options(budget=0.5)


def asynchronous(model):
    model.set_asynchronous_callbacks(True)


def outfeed_optimizer(model):
    wrapped = millrace.optimizers.OutfeedOptimizer(
        keras.optimizers.SGD(), millrace.OutfeedQueue(), model=model
    )
    model.compile(wrapped, "mse", run_eagerly=True)


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        (accumulate, PlanError, r"replica=3 has no effect.*Remove run_eagerly.*accumulation_st"),
        (recompute, PlanError, r"set_recomputation_options\(\) has no effect.*mode='none'"),
        (recompute_by_budget, PlanError, r"set_recomputation_options\(\) has no effect"),
        (asynchronous, PlanError, r"no effect with steps_per_execution=2. Set steps_per_exec.*=1"),
        (outfeed_optimizer, ModelError, r"OutfeedOptimizer would enqueue nothing.*Remove run_eag"),
    ],
)
def test_options_without_effect_are_refused(strategy, setting, error, message):
    model = build(strategy, run_eagerly=True, steps_per_execution=2)
    setting(model)
    for call in (lambda: model.fit(X, Y, **DATA), lambda: model.train_on_batch(X, Y)):
        with pytest.raises(error, match=message):
            call()


def test_outfeed_layers_are_refused(strategy):
    layer = millrace.layers.Outfeed(millrace.OutfeedQueue(), name="seen")
    model = build(strategy, layer, run_eagerly=True)
    for call in (model.fit, model.evaluate):
        with pytest.raises(ModelError, match=r"outfeed layers \['seen'\] would enqueue nothing"):
            call(X, Y, **DATA)


@pytest.mark.parametrize("callback", [NaNWatch, lambda: TensorStatistics(gradients="*")])
def test_callbacks_that_look_into_programs_are_refused(strategy, callback):
    model = build(strategy, run_eagerly=True)
    with pytest.raises(ModelError, match=r"run_eagerly=True. NaNWatch and TensorStatistics look"):
        model.fit(X, Y, callbacks=[callback()], **DATA)


def test_asynchronous_callbacks_of_single_steps_are_those_of_keras(strategy):
    model, steps = build(strategy, run_eagerly=True), []
    model.set_asynchronous_callbacks(True, stop_within=1)
    on_end = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: steps.append(step)
    )
    model.fit(X, Y, callbacks=[on_end], **DATA)
    assert steps == [0, 1, 2]


@pytest.mark.parametrize("option", ["run_eagerly=True", "jit_compile=False"])
def test_replicas_and_stages_are_refused(option):
    name, value = option.split("=")
    replicated = build(millrace.Strategy(devices=2), **{name: value == "True"})
    hidden = keras.layers.Dense(2)
    pipelined = build(millrace.Strategy(devices=2), hidden, **{name: value == "True"})
    pipelined.set_pipeline_stage_assignment([0, 1])
    pipelined.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    for model in (replicated, pipelined):
        message = rf"{option}.*Remove {name} from compile\(\), or run it in one piece on one device"
        for call in (lambda m=model: m.fit(X, Y, **DATA), lambda m=model: m.test_on_batch(X, Y)):
            with pytest.raises(ModelError, match=message):
                call()


def test_what_only_compiles_refuses_it(strategy):
    model = build(strategy, run_eagerly=True)
    with pytest.raises(ModelError, match="Remove run_eagerly from compile"):
        strategy.memory_report(model, (X, Y))
    with pytest.raises(ModelError, match="Remove run_eagerly from compile"):
        model.precompile((X, Y))
