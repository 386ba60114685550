"""The search for a choice, on numbers."""

import pytest

from millrace.errors import PlanError
from millrace.run.compiled_loop.budget import Search
from millrace.run.memory.pipeline_budget import CHOICES, first_choice

FIXED = 200
PREDICTED = [900, 700, 500, 400, 300, 200]
COMPILED = [1100, 890, 690, 590, 480, 390]


def found(budget, compiled=COMPILED, predicted=PREDICTED, running=None, arguments=FIXED):
    """Returns the choice, those compiled for their memory, and those compiled to run."""
    tried, ran = [], []

    def measure(number, is_trial):
        (tried if is_trial else ran).append(number)
        return compiled[number] if is_trial else (running or compiled)[number]

    search = Search(predicted, budget, measure)
    return search.run(arguments, lambda number: compiled[number] - FIXED), tried, ran


@pytest.mark.parametrize("limit", [390, 391, 480, 589, 590, 600, 700, 900, 1099, 1100, 5000])
def test_the_first_choice_that_is_predicted_to_fit_is_taken(limit):
    number, tried, ran = found(limit)
    first = next(k for k, peak in enumerate(COMPILED) if peak <= limit)
    assert first <= number <= first + (limit == 480)  # predicted to take 500
    assert ran[-1] == number
    assert len(ran) <= 2
    assert len(set(tried)) == len(tried) <= 3


def test_a_training_that_fits_anyway_is_compiled_once():
    assert found(1100) == (0, [], [0])
    assert found(1.0) == (0, [], [0])


def test_the_plain_program_is_not_compiled_where_it_cannot_fit():
    assert found(600) == (3, [], [3])


@pytest.mark.parametrize("arguments", [0, 150, 300, 500, 10_000])
def test_the_bytes_of_the_arguments_need_not_be_right(arguments):
    for limit in range(390, 1100, 17):
        number, tried, _ = found(limit, arguments=arguments)
        assert COMPILED[number] <= limit
        assert number <= next(k for k, peak in enumerate(COMPILED) if peak <= limit) + 1
        assert len(tried) <= 5


def test_a_prediction_that_holds_is_compiled_once():
    assert found(0.55) == (3, [0], [3])
    assert found(480) == (5, [], [5])


def test_further_attempts_are_compiled_for_their_memory_first():
    assert found(595) == (3, [3], [4, 3])  # 4 is predicted to fit, and leaves a fifth unused
    compiled = [1100, 890, 690, 650, 480, 390]
    assert found(600, compiled=compiled) == (4, [4], [3, 4])


def test_a_share_is_of_what_the_first_choice_takes():
    assert found(0.55)[0] == 3


def test_more_budget_never_takes_more_flops_or_less_memory():
    chosen = [found(limit)[0] for limit in range(390, 1200, 10)]
    assert chosen == sorted(chosen, reverse=True)


@pytest.mark.parametrize("factor", [0.5, 0.8, 1.0, 1.3, 2.0])
def test_predictions_may_be_wrong_by_a_factor(factor):
    compiled = [1100, *(FIXED + round(factor * each) for each in PREDICTED[1:])]
    for limit in range(min(compiled), 1100, 17):
        number, tried, _ = found(limit, compiled=compiled)
        assert compiled[number] <= limit
        assert len(tried) <= 5


def test_what_is_compiled_to_run_must_fit_too():
    running = [peak + 50 for peak in COMPILED]
    number, _, ran = found(600, running=running)
    assert running[number] <= 600
    assert ran == [3, 4]


def test_the_least_may_be_a_choice_before_the_last():
    assert found(385, compiled=[1100, 890, 690, 590, 380, 390])[0] == 4


@pytest.mark.parametrize("limit", [1, 389])
def test_a_budget_below_all_is_refused_with_the_least_that_was_compiled(limit):
    with pytest.raises(PlanError, match=r"smallest takes 390.*Set budget=390"):
        found(limit)
    with pytest.raises(PlanError, match=r"smallest takes 5.*Set budget=5"):
        found(3, compiled=[5], predicted=[0])


@pytest.mark.parametrize("fits", [0, 1, 7, CHOICES - 1])
def test_the_first_choice_of_a_pipeline(fits):
    peaks = [1000 - k for k in range(CHOICES)]
    tried = []

    def measure(number):
        tried.append(number)
        return peaks[number]

    assert first_choice(peaks[fits], measure) == fits
    assert len(set(tried)) == len(tried) <= 6
    with pytest.raises(PlanError, match=f"smallest takes {peaks[-1]}"):
        first_choice(peaks[-1] - 1, measure)
