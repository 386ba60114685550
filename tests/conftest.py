"""Eight virtual CPU devices and fixed seeds for every test."""

import os
import pathlib

os.environ["KERAS_BACKEND"] = "jax"
os.environ["MILLRACE_CACHE_DIR"] = "off"  # no test finds what another has compiled

import jax

jax.config.update("jax_num_cpu_devices", 8)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import millrace  # noqa: E402

SLOW = set((pathlib.Path(__file__).parent / "slow_tests.txt").read_text().splitlines())


def pytest_collection_modifyitems(items):
    """Marks what takes longest as slow: how long the default tests take is one number for all."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def seeds():
    """Starts every test from the same random state."""
    keras.utils.set_random_seed(0)
    np.random.seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def strategy():
    """A strategy on the first CPU device: on all eight, models would run as eight replicas."""
    return millrace.Strategy(devices=1)
