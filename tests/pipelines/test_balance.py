import itertools
import random

import keras
import pytest

from millrace.errors import ModelError, OptionError
from millrace.run.pipelines.assignment import balance as module
from millrace.run.pipelines.assignment.balance import balance

pytestmark = pytest.mark.quick


def measure(stages, costs, edges, num_stages):
    dearest = max(
        sum(cost for cost, mine in zip(costs, stages, strict=True) if mine == stage)
        for stage in range(num_stages)
    )
    crossing = sum(
        any(p in taken and stages[c] > cut for c, taken in enumerate(edges))
        for cut in range(num_stages - 1)
        for p in range(len(costs))
        if stages[p] <= cut
    )
    return dearest, crossing


def is_legal(stages, edges, num_stages):
    flows = all(stages[p] <= stages[c] for c, taken in enumerate(edges) for p in taken)
    return flows and set(stages) == set(range(num_stages))


def brute_force(costs, edges, num_stages):
    return min(
        measure(stages, costs, edges, num_stages)
        for stages in itertools.product(range(num_stages), repeat=len(costs))
        if is_legal(stages, edges, num_stages)
    )


def random_graph(rng, size):
    costs = [rng.randint(0, 6) for _ in range(size)]
    edges = [sorted(rng.sample(range(i), rng.randint(0, min(i, 2)))) for i in range(size)]
    return costs, edges


@pytest.mark.parametrize("seed", range(60))
def test_no_assignment_is_cheaper_or_crosses_less(seed):
    rng = random.Random(seed)
    costs, edges = random_graph(rng, rng.randint(1, 7))
    num_stages = rng.randint(1, min(4, len(costs)))
    stages = balance(costs, edges, num_stages)
    assert is_legal(stages, edges, num_stages)
    assert measure(stages, costs, edges, num_stages) == brute_force(costs, edges, num_stages)
    assert balance(costs, edges, num_stages) == stages


def test_the_drawing():
    costs, edges = [4, 3, 1, 1, 1], [[], [0], [1], [0], [2, 3]]
    assert balance(costs, edges, 2) == (0, 1, 1, 0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_is_cut_as_well_where_downsets_are_too_many_to_look_at(seed, monkeypatch):
    rng = random.Random(seed)
    costs = [rng.random() for _ in range(30)]
    edges = [[i - 1] if i else [] for i in range(30)]
    exact = balance(costs, edges, 5)
    monkeypatch.setattr(module, "MOST_DOWNSETS", 3)
    assert balance(costs, edges, 5) == exact


def test_many_branches_are_cut_in_their_order():
    edges = [[]] + [[0]] * 20 + [list(range(1, 21))]
    stages = balance([1.0] * 22, edges, 2)
    assert stages == (0,) * 11 + (1,) * 11


def test_calls_without_cost_still_fill_their_stages():
    assert sorted(set(balance([0, 0, 0], [[], [0], [1]], 3))) == [0, 1, 2]


@pytest.mark.parametrize("num_stages", [0, -1, 4])
def test_as_many_stages_as_calls_at_most(num_stages):
    with pytest.raises(OptionError, match=rf"3 layer calls .* into {num_stages} .* from 1 to 3"):
        balance([1, 1, 1], [[], [0], [1]], num_stages)


def test_layers_that_cannot_be_compiled_are_refused_before_they_are_traced(strategy):
    with strategy.scope():
        crop = keras.layers.RandomCrop(4, 4, name="crop")
        model = keras.Sequential(
            [keras.Input((6, 6, 1)), crop, keras.layers.Flatten(), keras.layers.Dense(1)]
        )
    with pytest.raises(ModelError, match=r"\['crop'\] do not support compilation.*data set"):
        model.set_pipeline_stage_assignment("auto", num_stages=2)
    model.set_pipeline_stage_assignment([0, 0, 1])
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)  # as far as it knows
    assert "crop" in "\n".join(lines)
