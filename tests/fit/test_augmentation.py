"""Layers that Keras flags as not to be compiled, and that JAX traces: compiled like any other."""

import contextlib
import logging

import keras
import numpy as np
import pytest

import millrace
from case_marks import slow
from millrace.errors import ModelError, PlanError

X = np.random.default_rng(1).uniform(size=(8, 10, 8, 3)).astype("float32")
Y = X.mean(axis=(1, 2))
FIT = {"batch_size": 2, "epochs": 2, "shuffle": False, "verbose": 0}

AUGMENTATIONS = {
    "rotation": lambda: keras.layers.RandomRotation(0.2),
    "zoom": lambda: keras.layers.RandomZoom(0.3, 0.2),
    "translation": lambda: keras.layers.RandomTranslation(0.2, 0.3, fill_mode="nearest"),
    "shear": lambda: keras.layers.RandomShear(0.3, 0.2),
    "perspective": lambda: keras.layers.RandomPerspective(0.5),
    "crop of what is smaller": lambda: keras.layers.RandomCrop(12, 9),
}
LAYERS = [x if x == "rotation" else slow(x) for x in AUGMENTATIONS]
WAYS = ["accumulated", "replicas", "stages", "recomputed"]


class OfValues(keras.layers.RandomRotation):
    """Needs a value of its images in Python."""

    def call(self, data, training=True):
        rotated = super().call(data, training=training)
        return rotated * float(data[0, 0, 0, 0]) if training else rotated


class OnHost(keras.layers.Layer):
    """Flagged by its author, who knows what a trace does not show."""

    def __init__(self):
        super().__init__()
        self.supports_jit = False
        self.calls = {"number": 0}

    def call(self, x):
        self.calls["number"] += 1
        return x


def build(strategy, make, *, declared=True, accumulation=1, **compilation):
    """A small model, whose plain form accumulates in its optimizer."""
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        first = [keras.Input(X.shape[1:])] if declared else []
        layers = [
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
        ]
        model = keras.Sequential([*first, make(), *layers, keras.layers.Dense(3)])
    steps = accumulation if strategy is None and accumulation > 1 else None
    optimizer = keras.optimizers.SGD(0.05, gradient_accumulation_steps=steps)
    model.compile(optimizer, "mse", **compilation)
    return model


def trained(model):
    history = model.fit(X, Y, **FIT).history
    return [history["loss"], *[np.asarray(v) for v in model.variables]]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-6, 1e-6)


def assert_compiled(strategy, model):
    assert model.jit_compile
    assert strategy.statistics().executions > 0


@pytest.mark.parametrize("layer", LAYERS)
def test_it_is_compiled_with_the_numbers_of_keras(strategy, layer):
    stock = build(None, AUGMENTATIONS[layer])
    assert not stock.jit_compile
    model = build(strategy, AUGMENTATIONS[layer])
    assert_same(trained(model), trained(stock))
    assert_compiled(strategy, model)
    found, expected = [x.evaluate(X, Y, batch_size=2, verbose=0) for x in (model, stock)]
    assert found == pytest.approx(expected, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_way_to_train(layer, way):
    strategy = millrace.Strategy(devices=2 if way in ("replicas", "stages") else 1)
    model = build(strategy, AUGMENTATIONS[layer])
    if way == "accumulated":
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    elif way == "stages":
        model.set_pipeline_stage_assignment([0, 0, 1, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    elif way == "recomputed":
        model.set_recomputation_options(mode="auto")
    accumulation = 1 if way == "recomputed" else 2
    expected = trained(build(None, AUGMENTATIONS[layer], accumulation=accumulation))
    assert_same(trained(model), expected)
    assert_compiled(strategy, model)


@slow
def test_stages_of_equal_cost():
    strategy = millrace.Strategy(devices=2)
    model = build(strategy, AUGMENTATIONS["rotation"])
    model.set_pipeline_stage_assignment("auto")
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=2)
    assert_same(trained(model), trained(build(None, AUGMENTATIONS["rotation"], accumulation=2)))


def test_a_model_that_is_not_built(strategy):
    model, stock = [build(x, AUGMENTATIONS["rotation"], declared=False) for x in (strategy, None)]
    assert_same(trained(model), trained(stock))
    assert_compiled(strategy, model)


@pytest.mark.parametrize(
    "make",
    [slow(OfValues), lambda: keras.layers.RandomCrop(6, 6), OnHost],
    ids=["value", "crop", "own"],
)
def test_what_does_not_trace_stays_in_the_loop_of_keras(strategy, make):
    make = (lambda: OfValues(0.2)) if make is OfValues else make
    model = build(strategy, make)
    name = model.layers[0].name
    assert_same(trained(model), trained(build(None, make)))
    assert not model.jit_compile
    assert strategy.statistics().executions == 0
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    with pytest.raises(PlanError, match=rf"\['{name}'\].* Move these layers in front of the model"):
        model.fit(X, Y, **FIT)


def test_a_choice_among_many_layers_is_not_compiled(strategy):
    assert not build(strategy, lambda: keras.layers.RandAugment(num_ops=1)).jit_compile


@pytest.mark.slow
def test_a_choice_of_the_user_is_respected(strategy, caplog):
    model = build(strategy, AUGMENTATIONS["rotation"], jit_compile=False)
    with caplog.at_level(logging.INFO, "millrace"):
        model.fit(X, Y, **FIT)
    assert "has jit_compile=False, so Keras's own loop runs it" in caplog.text
    assert strategy.statistics().executions == 0
    replicated = build(millrace.Strategy(devices=2), AUGMENTATIONS["rotation"], jit_compile=False)
    with pytest.raises(ModelError, match=r"compiled with jit_compile=False. Remove jit_compile fr"):
        replicated.fit(X, Y, **FIT)
    eager = build(strategy, AUGMENTATIONS["rotation"], run_eagerly=True)
    eager.fit(X, Y, **FIT)
    assert strategy.statistics().executions == 0


@pytest.mark.slow
def test_a_model_that_was_compiled_without_the_strategy(strategy, caplog):
    model = build(None, AUGMENTATIONS["rotation"])
    strategy.attach(model)
    with caplog.at_level(logging.INFO, "millrace"):
        model.fit(X, Y, **FIT)
    assert "Remove jit_compile from compile(), or set model.jit_compile = True" in caplog.text
    model = build(None, AUGMENTATIONS["rotation"])
    strategy.attach(model)
    model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    with pytest.raises(PlanError, match=r"jit_compile=False.* or set model.jit_compile = True"):
        model.fit(X, Y, **FIT)
    model.jit_compile = True
    expected = trained(build(None, AUGMENTATIONS["rotation"], accumulation=2))
    assert_same(trained(model), expected)
    assert_compiled(strategy, model)


def test_a_saved_model_is_compiled_again(strategy, tmp_path):
    build(strategy, AUGMENTATIONS["rotation"]).save(tmp_path / "model.keras")
    with strategy.scope():
        model = keras.models.load_model(tmp_path / "model.keras")
    assert model.jit_compile
    model.fit(X, Y, **FIT)
    assert_compiled(strategy, model)


def test_models_without_a_strategy_are_as_in_keras(strategy):
    model = build(strategy, AUGMENTATIONS["rotation"])  # while this one is attached
    assert not build(None, AUGMENTATIONS["rotation"]).jit_compile
    strategy.detach(model)
    model.compile("sgd", "mse")
    assert not model.jit_compile
