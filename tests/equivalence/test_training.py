"""Every case of the table: losses, metrics, weights, statistics, seeds and optimizer state."""

import functools
import itertools

import cases
import keras
import numpy as np
import pytest

from case_marks import slow_but_for, with_marks

SLOW = (
    "deferred",
    "batchnorm-dropout",
    "dict-inputs-outputs",
    "nested",
    "subclassed",
    "lstm",
    "stateful-lstm",
    "masked-embedding",
    "attention",
    "add-loss",
    "own-compute-loss",
    "own-compute-metrics",
)


@functools.cache
def plain(case):
    return cases.train(case)


def by_name(name):
    (case,) = (case for case in cases.MODELS + cases.OPTIONS if case.name == name)
    return case


@pytest.mark.parametrize(
    "case", with_marks(cases.MODELS, slow=SLOW, quick=("sequential",)), ids=lambda case: case.name
)
def test_models(strategy, case):
    found, expected = cases.train(case, strategy, 3), plain(case)
    cases.assert_same(found, expected, case.tolerance)

    data = case.data(case.rows)
    evaluated, predicted = [], []
    for model in (found.model, expected.model):
        arguments = {"batch_size": cases.BATCH_SIZE, "verbose": 0}
        evaluated.append(model.evaluate(**data, return_dict=True, **arguments))
        predicted.append(model.predict(data["x"], **arguments))
    assert list(evaluated[0]) == list(evaluated[1])
    cases.assert_close(evaluated[0], evaluated[1], case.tolerance)
    cases.assert_close(predicted[0], predicted[1], case.tolerance)
    cases.assert_same_variables(*map(cases.variables_of, (found.model, expected.model)))


@pytest.mark.parametrize(
    "case",
    with_marks(
        cases.OPTIONS,
        # The last three are trained by test_updates_in_order.py, too.
        slow=(
            "stateful-metrics",
            "weighted-metrics",
            "loss-weights",
            "bfloat16-normalized",
            "class-weight-integers",
            "ema-overwrite",
            "exponential-decay",
            "lion",
            "nadam",
            "nesterov",
            "rmsprop",
            "shuffle-none",
            "staircase",
            "amsgrad",
            "global-clipnorm",
            "loss-scaling",
        ),
        quick=("validation-data",),
    ),
    ids=lambda case: case.name,
)
def test_options(strategy, case):
    cases.assert_same(cases.train(case, strategy, 3), plain(case), case.tolerance)


@pytest.mark.parametrize(
    ("name", "steps_per_execution"),
    slow_but_for(
        itertools.product(
            ("batchnorm-dropout", "convnet", "own-compute-metrics", "own-accumulation"),
            (1, 2, 100),
        ),
        ("batchnorm-dropout", 100),
        ("convnet", 2),
        ("own-compute-metrics", 100),
        ("own-accumulation", 100),
    ),
)
def test_the_steps_of_an_execution_change_no_result(strategy, name, steps_per_execution):
    case = by_name(name)
    cases.assert_same(cases.train(case, strategy, steps_per_execution), plain(case))


def test_without_loops_of_the_compiler_results_are_exact(strategy):
    """One step per execution of a model without shapes to choose from: the same bits."""
    found = cases.train(by_name("sgd"), strategy, 1)
    expected = plain(by_name("sgd"))
    assert found.history == expected.history
    exact = cases.Tolerance(rtol=0, atol=0)
    cases.assert_same_variables(found.variables, expected.variables, exact)


@pytest.mark.parametrize(
    "feed",
    [{}, {"max_block_bytes": 300, "prefetch_depth": 1}],
    ids=["not-resident", "small-blocks"],
)
@pytest.mark.parametrize("name", ["seed-generators", "convnet"])
def test_the_feed_changes_no_result(strategy, name, feed):
    case = by_name(name)
    model = cases.compiled(case, strategy, 3)
    model.set_infeed_queue_options(**{"max_resident_bytes": 0, **feed})
    cases.assert_same(cases.fit(case, model), plain(case))


def test_asynchronous_callbacks_change_no_result(strategy):
    case = by_name("batchnorm-dropout")
    model = cases.compiled(case, strategy, 3)
    model.set_asynchronous_callbacks(True)
    cases.assert_same(cases.fit(case, model), plain(case))


def test_a_second_fit_goes_on_where_the_first_one_ended(strategy):
    case = by_name("batchnorm-dropout")
    outcomes = []
    for model in (cases.compiled(case), cases.compiled(case, strategy, 3)):
        cases.fit(case, model)
        outcomes.append(cases.fit(case, model))
    cases.assert_same(outcomes[1], outcomes[0])


@pytest.mark.slow
def test_attaching_a_trained_model_goes_on_where_plain_training_ended(strategy):
    case = by_name("batchnorm-dropout")
    outcomes = []
    for attached in (False, True):
        model = cases.compiled(case)
        cases.fit(case, model)
        outcomes.append(cases.fit(case, strategy.attach(model) if attached else model))
    cases.assert_same(outcomes[1], outcomes[0])


@pytest.mark.slow
def test_trainable_and_frozen_variables_can_mix(strategy):
    """A frozen part that is thawed: more trainable variables, another optimizer state."""
    case = by_name("nested")
    outcomes = []
    for steps, owner in ((1, None), (3, strategy)):
        model = cases.compiled(case, owner, steps)
        inner = model.get_layer("inner")
        inner.trainable = False
        model.compile("adam", "mse", steps_per_execution=steps)
        before = [np.array(v) for v in inner.variables]
        cases.fit(case, model)
        for value, variable in zip(before, inner.variables, strict=True):
            np.testing.assert_array_equal(np.array(variable), value)
        inner.trainable = True
        model.compile("adam", "mse", steps_per_execution=steps)
        outcomes.append(cases.fit(case, model))
    cases.assert_same(outcomes[1], outcomes[0])


def test_a_model_without_weights_evaluates(strategy):
    data = cases.table()
    results = []
    for owner in (None, strategy):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Rescaling(0.5)])
        if owner is not None:
            owner.attach(model)
        model.compile("sgd", "mse")
        results.append(model.evaluate(data["x"], data["x"], verbose=0))
    cases.assert_close(results[1], results[0])
