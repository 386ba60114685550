"""What the first compilation of a process says of those of earlier ones, which left their keys."""

import sys

import keras
import numpy as np
import pytest
from keras import layers

import millrace
import millrace.compilation.cache.use as cache
from millrace._compat import jax_cache
from millrace.compilation.executables.sharing import sharing
from millrace.compilation.explain.diagnose import history

pytestmark = pytest.mark.quick

X, Y = np.ones((12, 4), "float32"), np.ones((12, 1), "float32")
FIRST = "first compilation"


def dense():
    return layers.Dense(3)


@pytest.fixture
def process(monkeypatch, tmp_path):
    """Returns what compiles a model as a new process of some script would, and gives the cause."""
    monkeypatch.setattr(cache, "_cache", cache._Cache())
    monkeypatch.setattr(jax_cache, "loads_quietly", lambda: True)

    def run(script, *inner, batch_size=4):
        sharing.clear()
        history.clear()
        monkeypatch.setattr(sys.modules["__main__"], "__file__", script, raising=False)
        keras.backend.clear_session()  # counts names anew
        strategy = millrace.Strategy(devices=1, cache_dir=tmp_path)
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((4,)), *(make() for make in inner), layers.Dense(1)]
            )
        model.compile("sgd", "mse", steps_per_execution=3)
        model.fit(X, Y, batch_size=batch_size, verbose=0)
        (record,) = strategy.compile_log
        return record.cause, record.remedy

    yield run
    jax_cache.uninstall()


@pytest.mark.slow
def test_an_unrelated_script_with_a_model_of_the_same_name(process):
    assert process("/home/a/train.py", dense) == (FIRST, "")
    assert process("/home/a/other.py") == (FIRST, "")


@pytest.mark.slow
def test_the_same_script_whose_model_has_changed(process):
    process("/home/a/train.py", dense, lambda: layers.Dropout(0.1))
    cause, remedy = process("/home/a/train.py", dense)
    assert cause.startswith(f"{FIRST}; since an earlier process: layer 'dropout' (Dropout) is gone")
    assert remedy


def test_another_script_with_the_same_model(process):
    process("/home/a/train.py", dense)
    cause, _ = process("/home/a/again.py", dense, batch_size=3)
    assert "since an earlier process: argument x: shape (4, 4) -> (3, 4)" in cause


def test_a_notebook_is_no_script_in_common_with_another_one(process):
    process(None, dense)
    assert process(None) == (FIRST, "")
