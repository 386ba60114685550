"""Executables are released: those of trials at once, others before the process has too many."""

import gc
import weakref

import jax
import keras
import numpy as np
import pytest

import millrace
from millrace._compat.jax_executables import sizes_of
from millrace.compilation.executables import executable, sharing

ROWS, WIDTH = 256, 64


@pytest.fixture
def made(monkeypatch):
    """The executables that are compiled, as weak references, in order."""
    references = []
    make = executable.share_or_compile

    def spy(lowering, log):
        result = make(lowering, log)
        references.append(weakref.ref(result.compiled))
        return result

    monkeypatch.setattr(executable, "share_or_compile", spy)
    return references


def test_trials_of_a_budget_are_released(made):
    strategy = millrace.Strategy(devices=1)
    with strategy.scope():
        hidden = [keras.layers.Dense(WIDTH, "tanh") for _ in range(12)]
        model = keras.Sequential([keras.Input((2,)), *hidden, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.set_recomputation_options(budget=0.7)
    x, y = np.ones((ROWS, 2), "float32"), np.ones((ROWS, 1), "float32")
    model.fit(x, y, batch_size=ROWS, verbose=0)
    sharing.sharing.clear()
    gc.collect()
    alive = [each() is not None for each in made]
    assert len(alive) >= 2
    assert alive.count(True) == 1


@pytest.mark.parametrize("is_near", [False, True])
def test_half_of_the_shared_ones_go_where_mappings_are_few(monkeypatch, is_near):
    monkeypatch.setattr(sharing, "_nears_the_most_mappings", lambda: is_near)
    table, compiled = sharing.Sharing(), jax.jit(lambda x: x + 1).lower(1.0).compile()
    kept = sharing.SharedExecutable(compiled, (), (), sizes_of(compiled))
    made = []

    def get(key):
        return table.get(key, lambda: made.append(key) or kept)

    for key in range(20):
        assert get(key) is kept
    assert made == list(range(20))
    get(19)
    assert made == list(range(20))
    get(0)
    assert (len(made) > 20) == is_near


def test_this_process_has_mappings_left():
    assert not sharing._nears_the_most_mappings()
