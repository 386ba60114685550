"""What is run again in backward changes no number: every model of the table, and dropout masks."""

from dataclasses import replace

import cases
import jax
import keras
import numpy as np
import pipeline_cases as pipes
import pytest
from keras import layers

import millrace
from millrace.layers import RecomputationCheckpoint
from millrace.programs.plan import Recompute
from millrace.programs.recomputation import modes as recomputation
from millrace.run.fit import functions

# A gradient that is zero by rounding only becomes a step of full size in Adam: biases in front of a
# softmax or a normalization.
SGD = {"optimizer": lambda: keras.optimizers.SGD(0.01, momentum=0.9)}
ROUNDED = {
    "attention": cases.regression_by_sgd,
    "batchnorm-dropout": cases.binary(**SGD),
}
# A train_step of the user's own is not ours to differentiate.
MODELS = [
    replace(case, compile=ROUNDED.get(case.name, case.compile))
    for case in cases.MODELS
    if case.name != "own-train-step"
]


@pytest.fixture
def choose(monkeypatch):
    """Lets training make a choice that a budget might lead to; the last one for a large number."""

    def choose(number):
        chosen = Recompute(choice=number) if number else None
        monkeypatch.setattr(functions, "recompute_of", lambda *given: chosen)

    return choose


# Every model with two choices takes minutes. These few have all that can go wrong.
SELDOM = {2: pytest.mark.exhaustive, 1000: pytest.mark.slow}
QUICK = {("batchnorm-dropout", 1000), ("lstm", 2), ("shared-layer", 1000), ("subclassed", 1000)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "choice"),
    [
        pytest.param(
            case,
            choice,
            id=f"{case.name}-{choice}",
            marks=() if (case.name, choice) in QUICK else SELDOM[choice],
        )
        for case in MODELS
        for choice in (2, 1000)
    ],
)
def test_models(strategy, choose, case, choice):
    choose(choice)
    cases.assert_same(cases.train(case, strategy, 3), cases.train(case), case.tolerance)


def marked(marks=True):
    """Dropout, BatchNormalization, a branch, a shared layer and a mark on each of three levels."""
    mark = RecomputationCheckpoint if marks else layers.Identity
    shared = layers.Dense(8, "tanh")
    inputs = keras.Input((6,))
    x = layers.Dropout(0.5, seed=3)(layers.Dense(8, "relu")(inputs))
    x, skip = mark()((x, inputs)) if marks else (x, inputs)
    x = layers.BatchNormalization()(shared(x))
    x = mark()(layers.Concatenate()([x, skip]))
    x = layers.GaussianNoise(0.1, seed=4)(layers.Dense(8)(x))
    x = mark()(shared(x))
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.Dropout(0.3, seed=5)(x)))


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 5])
@pytest.mark.parametrize("replicas", [1, 2])
def test_boundaries(accumulation, replicas):
    expected = cases.Case("unmarked", lambda: marked(marks=False))
    outcomes = []
    for on in (False, True):
        model = cases.compiled(
            cases.Case("marked", marked), millrace.Strategy(replicas), 5 * replicas
        )
        model.set_gradient_accumulation_options(
            gradient_accumulation_steps_per_replica=accumulation
        )
        if on:
            model.set_recomputation_options()
        outcomes.append(cases.fit(expected, model))
    cases.assert_same(outcomes[1], outcomes[0])
    if accumulation == replicas == 1:
        cases.assert_same(outcomes[1], cases.train(expected))


def test_the_structure_of_values_comes_back():
    layer = RecomputationCheckpoint()
    value = {"a": np.ones(3), "b": (np.zeros((2, 1)), [np.arange(4)])}
    found = layer(value)
    assert jax.tree.structure(found) == jax.tree.structure(value)
    jax.tree.map(np.testing.assert_array_equal, found, value)
    assert layer.weights == []
    copy = RecomputationCheckpoint.from_config(layer.get_config())
    assert copy.name == layer.name
    x = keras.Input((4,))
    assert keras.Model(x, layer({"x": x}))(np.ones((2, 4)))["x"].shape == (2, 4)


def temporaries(model, strategy, x, y):
    before = len(strategy.compile_log)
    model.fit(x, y, batch_size=len(x), verbose=0)
    (record,) = (r for r in strategy.compile_log[before:] if r.program == "train_run")
    return record.temporary_bytes


def chain(depth, mark_every):
    x = inputs = keras.Input((256,))
    for k in range(depth):
        x = layers.Dense(256, "tanh")(x)
        if mark_every and k % mark_every == mark_every - 1:
            x = RecomputationCheckpoint()(x)
    return keras.Model(inputs, x)


@pytest.mark.slow
@pytest.mark.shipped_compiler
def test_boundaries_save_memory_if_recomputation_is_on(strategy):
    x = np.ones((1024, 256), "float32")
    found = {}
    for mark_every, on in ((0, False), (4, False), (4, True)):
        with strategy.scope():
            model = chain(16, mark_every)
        model.compile("sgd", "mse")
        if on:
            model.set_recomputation_options()
        found[mark_every, on] = temporaries(model, strategy, x, x)
    assert found[4, False] == found[0, False]
    assert found[4, True] < 0.6 * found[4, False]


def staged():
    """Dropout, BatchNormalization, boundaries in both stages, and one between them."""
    x = inputs = keras.Input((6,))
    x = layers.Dropout(0.5, seed=3)(layers.Dense(8, "relu")(x))
    x = RecomputationCheckpoint()(x)
    x = layers.BatchNormalization()(layers.Dense(8)(x))
    x = RecomputationCheckpoint()(layers.Dense(8, "tanh")(x))
    x = layers.Dropout(0.2, seed=4)(layers.Dense(8, "tanh")(x))
    x = RecomputationCheckpoint()(x)
    return keras.Model(inputs, layers.Dense(1, "sigmoid")(layers.Dense(4)(x)))


STAGED = cases.Case("staged", staged, compile=cases.optimizer("SGD", 0.1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "replicas"),
    [
        (schedule, replicas)
        for schedule in ("1f1b", "grouped", "sequential", "gpipe", "zero_bubble")
        for replicas in (1, 2)
    ],
)
def test_stages(schedule, replicas):
    """The same numbers with every mode that goes with the schedule.

    XLA fuses a forward and its backward otherwise than a backward alone, so not always the bits.
    """

    def trained(mode):
        model = pipes.pipelined(
            STAGED, 2, devices=2 * replicas, executed=replicas,
            pipeline_schedule=schedule, recomputation_mode=mode,
        )  # fmt: skip
        return cases.fit(STAGED, model)

    plain = trained("none")
    for mode in recomputation._MODES.get(schedule, (recomputation.THEN, recomputation.INTERLEAVED)):
        found = trained(mode.value)
        cases.assert_same(found, plain)


@pytest.mark.slow
def test_stages_keep_less(strategy):
    """What waits for its backward are the inputs of a stage, or of its segments."""
    in_flight = {}
    for mode in ("none", "recompute_then_backpropagate", "recompute_and_backpropagate_interleaved"):
        two = millrace.Strategy(devices=2)
        with two.scope():
            model = chain(16, 4)
        model.compile("sgd", "mse", steps_per_execution=4)
        model.set_pipeline_stage_assignment("auto", num_stages=2)
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4,
            pipeline_schedule="grouped",
            recomputation_mode=mode,
        )
        report = two.memory_report(model, (np.ones((64, 256), "float32"),) * 2)
        in_flight[mode] = [device.stages[0].in_flight for device in report.devices]
    none, whole, segments = (stages[0] for stages in in_flight.values())
    assert whole < segments < none / 2
    # Backward of the last stage follows its forward at once.
    assert in_flight["recompute_then_backpropagate"][1] <= in_flight["none"][1]
