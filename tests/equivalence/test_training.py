"""Every case of the table: losses, metrics, weights, statistics, seeds and optimizer state."""

import functools

import cases
import pytest

# One step; executions that end within the epoch, and within no whole number of them; one that
# covers more than an epoch.
STEPS_PER_EXECUTION = [1, 3, 100]


@functools.cache
def plain(case):
    return cases.train(case)


def by_name(case):
    return case.name


@pytest.mark.parametrize("steps_per_execution", STEPS_PER_EXECUTION)
@pytest.mark.parametrize("case", cases.MODELS, ids=by_name)
def test_models(strategy, case, steps_per_execution):
    found = cases.train(case, strategy, steps_per_execution)
    cases.assert_same(found, plain(case), case.tolerance)


@pytest.mark.parametrize("steps_per_execution", STEPS_PER_EXECUTION)
@pytest.mark.parametrize("case", cases.OPTIONS, ids=by_name)
def test_options(strategy, case, steps_per_execution):
    found = cases.train(case, strategy, steps_per_execution)
    cases.assert_same(found, plain(case), case.tolerance)


@pytest.mark.parametrize("case", cases.MODELS, ids=by_name)
def test_evaluate_and_predict(strategy, case):
    reference, model = cases.compiled(case), cases.compiled(case, strategy, 3)
    data = case.data()
    size = cases.BATCH_SIZE
    expected = reference.evaluate(**data, batch_size=size, return_dict=True, verbose=0)
    found = model.evaluate(**data, batch_size=size, return_dict=True, verbose=0)
    assert list(found) == list(expected)
    cases.assert_close(found, expected)
    expected = reference.predict(data["x"], batch_size=size, verbose=0)
    cases.assert_close(model.predict(data["x"], batch_size=size, verbose=0), expected)
    cases.assert_same_variables(cases.variables_of(model), cases.variables_of(reference))


def test_training_that_changes_nothing_else_is_exact(strategy):
    """Integer arithmetic and single steps: the same bits, not only near ones."""
    case = next(case for case in cases.OPTIONS if case.name == "sgd")
    found = cases.train(case, strategy, 1)
    expected = plain(case)
    assert found.history == expected.history
    cases.assert_same_variables(found.variables, expected.variables, cases.Tolerance(0, 0))


def test_asynchronous_callbacks_change_no_result(strategy):
    case = next(case for case in cases.MODELS if case.name == "batchnorm-dropout")
    model = cases.compiled(case, strategy, 3)
    model.set_asynchronous_callbacks(True)
    cases.keras.utils.set_random_seed(2)
    history = model.fit(**case.data(), batch_size=4, epochs=2, verbose=0)
    cases.assert_same(cases.outcome(model, history), plain(case))


@pytest.mark.parametrize(
    "feed",
    [{"max_resident_bytes": 0}, {"max_block_bytes": 1}, {"max_block_bytes": 300}],
    ids=["not-resident", "blocks-of-one-step", "blocks-of-two-steps"],
)
@pytest.mark.parametrize("name", ["batchnorm-dropout", "convnet"])
def test_the_feed_changes_no_result(strategy, name, feed):
    case = next(case for case in cases.MODELS if case.name == name)
    model = cases.compiled(case, strategy, 3)
    model.set_infeed_queue_options(**{"max_resident_bytes": 0, **feed})
    cases.keras.utils.set_random_seed(2)
    history = model.fit(**case.data(), batch_size=4, epochs=2, verbose=0)
    cases.assert_same(cases.outcome(model, history), plain(case))
