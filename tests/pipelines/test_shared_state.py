"""Calls that change the same state are on one stage: "auto" never cuts between them."""

import keras
import numpy as np
import pytest
from keras import layers

from millrace.errors import OptionError
from millrace.run.pipelines.assignment.layer_calls import find_calls, leaf_edges, leaves
from millrace.run.pipelines.assignment.shared_state import edges_of_groups, groups_by_state

pytestmark = pytest.mark.quick


def groups(model):
    calls = find_calls(model)
    return groups_by_state(leaves(calls), leaf_edges(calls))


def chain(*hidden):
    inputs = value = keras.Input((6,))
    for layer in hidden:
        value = layer(value)
    return keras.Model(inputs, value)


def test_layers_of_one_call_are_each_a_group():
    model = chain(layers.Dense(3), layers.BatchNormalization(), layers.Dropout(0.1))
    assert groups(model) == (0, 1, 2)


def test_a_layer_without_state_that_changes_may_be_on_several_stages():
    layer = layers.Dense(6)
    assert groups(chain(layer, layers.ReLU(), layer)) == (0, 1, 2)


def test_what_lies_between_is_on_the_same_stage():
    norm = layers.BatchNormalization()
    model = chain(layers.Dense(6), norm, layers.Dense(6), norm, layers.Dense(1))
    assert groups(model) == (0, 1, 1, 1, 2)


class Noise(layers.Layer):
    """Draws from a generator that other layers draw from, too."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def call(self, inputs):
        return inputs + keras.random.normal((6,), seed=self.seed)


def test_two_layers_with_one_seed_generator():
    seed = keras.random.SeedGenerator(1)
    assert groups(chain(Noise(seed), layers.ReLU(), Noise(seed))) == (0, 0, 0)


def test_frozen_statistics_stay_and_frozen_seeds_do_not():
    norm, dropout = layers.BatchNormalization(), layers.Dropout(0.1)
    norm.trainable = dropout.trainable = False
    assert groups(chain(norm, layers.ReLU(), norm)) == (0, 1, 2)
    assert groups(chain(dropout, layers.ReLU(), dropout)) == (0, 0, 0)


def test_a_model_that_is_called_twice_can_be_cut_between_its_layers():
    tower = chain(layers.Dense(6), layers.BatchNormalization(), layers.Dense(6))
    left, right = keras.Input((6,)), keras.Input((6,))
    model = keras.Model([left, right], layers.Subtract()([tower(left), tower(right)]))
    found = groups(model)  # the calls of the left, then of the right, then the difference
    assert found[1] == found[4]
    assert len(set(found)) == 6


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_numbered_as_values_flow(seed):
    random = np.random.default_rng(seed)
    shared = [layers.BatchNormalization() for _ in range(2)]
    values = [keras.Input((6,))]
    inputs = values[0]
    for _ in range(8):
        a, b = (values[k] for k in random.integers(0, len(values), 2))
        layer = shared[random.integers(0, 2)] if random.random() < 0.4 else layers.ReLU()
        values.append(layer(layers.Add()([a, b])))
    calls = find_calls(keras.Model(inputs, values[1:]))
    edges = leaf_edges(calls)
    found = groups_by_state(leaves(calls), edges)
    assert sorted(set(found)) == list(range(max(found) + 1))
    for group, taken in enumerate(edges_of_groups(found, edges)):
        assert all(producer < group for producer in taken)
    for layer in shared:
        mine = [g for g, call in zip(found, leaves(calls), strict=True) if call.operation is layer]
        assert len(set(mine)) <= 1


def test_too_few_groups_for_the_stages(strategy):
    with strategy.scope():
        norm = layers.BatchNormalization()
        model = chain(layers.Dense(6, name="a"), norm, layers.Dense(6, name="b"), norm)
    model.set_pipeline_stage_assignment("auto", num_stages=2)
    with pytest.raises(OptionError, match=r"into 3 stages, only into 2: .*'b'.*num_stages=2"):
        model.set_pipeline_stage_assignment("auto", num_stages=3)
    with strategy.scope():
        model = chain(norm, layers.ReLU(), norm)
    with pytest.raises(OptionError, match=r"only into 1: .*leave the model in one piece"):
        model.set_pipeline_stage_assignment("auto", num_stages=2)
