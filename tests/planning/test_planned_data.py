"""`Strategy(memory=...)` and `fit` of data sets: planned as arrays are, and no number changes."""

import itertools
import logging
import random

import jax
import keras
import numpy as np
import plan_cases as cases
import pytest

import millrace
from millrace.tools.planning.batch_of_data import batch_of_data

ROWS, BATCHES = 64, 3


class Noisy(keras.utils.PyDataset):
    """Items with random numbers of the global generators."""

    def __len__(self):
        return BATCHES

    def __getitem__(self, number):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(ROWS, 16)).astype("float32")
        y = rng.normal(size=(ROWS, 1)).astype("float32")
        return x + np.float32(0.1 * np.random.normal() + 0.1 * random.random()), y


class Broken(Noisy):
    def __getitem__(self, number):
        raise RuntimeError("no such file")


def seeded(fit):
    keras.utils.set_random_seed(1)
    return fit()


def specs_of(arguments):
    zeros, steps = batch_of_data(arguments)
    return [(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(zeros)], steps


EXPECTED = [((ROWS, 16), "float32"), ((ROWS, 1), "float32")]


def test_what_is_known_of_a_data_set():
    assert specs_of({"x": Noisy()}) == (EXPECTED, BATCHES)
    assert specs_of({"x": Noisy(), "steps_per_epoch": 2}) == (EXPECTED, 2)
    assert batch_of_data({"x": Broken()}) is None
    assert batch_of_data({"x": itertools.repeat(Noisy()[0])}) is None
    assert batch_of_data({"x": None}) is None


def test_random_numbers_are_as_before():
    np.random.seed(3)
    random.seed(3)
    expected = np.random.normal(), random.random()
    np.random.seed(3)
    random.seed(3)
    batch_of_data({"x": Noisy()})
    assert (np.random.normal(), random.random()) == expected


@pytest.mark.slow
def test_fit_plans_for_a_data_set(caplog):
    caplog.set_level(logging.INFO, "millrace")
    x, y = cases.data(cases.mlp(), ROWS)
    strategy = millrace.Strategy(devices=1)
    peak = strategy.memory_report(cases.attached(strategy, cases.mlp), (x, y)).peak
    strategy = millrace.Strategy(devices=1, memory=int(0.75 * peak))
    model = cases.attached(strategy, cases.mlp)
    plain = cases.mlp()
    plain.compile("adam", "mse")
    plain.set_weights(model.get_weights())
    losses = seeded(lambda: model.fit(Noisy(), shuffle=False, epochs=2, verbose=0)).history["loss"]
    assert any(each.message.startswith("planned: 'mlp'") for each in caplog.records)
    assert strategy.memory_report(model, (x, y)).peak <= 0.75 * peak
    expected = seeded(lambda: plain.fit(Noisy(), shuffle=False, epochs=2, verbose=0))
    np.testing.assert_allclose(losses, expected.history["loss"], rtol=cases.SAME)


def test_the_error_of_a_data_set_is_its_own():
    model = cases.attached(millrace.Strategy(devices=1, memory="1GB"), cases.mlp)
    with pytest.raises(RuntimeError, match="no such file"):
        model.fit(Broken(), verbose=0)


def test_a_loader_of_torch():
    torch = pytest.importorskip("torch")
    x, y = torch.zeros(150, 16), torch.zeros(150, 1)
    data = torch.utils.data.TensorDataset(x, y)
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=True)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert specs_of({"x": loader}) == (EXPECTED, 3)
    assert torch.equal(torch.rand(1), expected)
    few = torch.utils.data.DataLoader(data, batch_size=1000)
    assert specs_of({"x": few})[0][0] == ((150, 16), "float32")
    assert batch_of_data({"x": torch.utils.data.DataLoader(data, batch_size=None)}) is None


def test_a_data_set_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices((np.zeros((150, 16), "f4"), np.zeros((150, 1), "f4")))
    for drops in (False, True):
        batched = data.shuffle(10).batch(ROWS, drop_remainder=drops).map(lambda x, y: (x + 1, y))
        assert specs_of({"x": batched.prefetch(2)}) == (EXPECTED, 2 if drops else 3)
    assert specs_of({"x": batched.repeat()}) == (EXPECTED, None)
    assert specs_of({"x": batched.repeat(), "steps_per_epoch": 5}) == (EXPECTED, 5)
    assert batch_of_data({"x": data.ragged_batch(ROWS)}) is not None
    items = tf.data.Dataset.from_generator(
        lambda: iter([]), output_signature=(tf.TensorSpec(None), tf.TensorSpec(None))
    )
    assert batch_of_data({"x": items}) is None
