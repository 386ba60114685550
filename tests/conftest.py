"""Eight virtual CPU devices, fixed seeds and a quick compiler for every test."""

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["MILLRACE_CACHE_DIR"] = "off"  # no test finds what another has compiled

import jax

jax.config.update("jax_num_cpu_devices", 8)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import millrace  # noqa: E402
from quick_compiler import QuickCompiler  # noqa: E402
from slow_names import SlowNames  # noqa: E402

compiler = QuickCompiler()


def pytest_addoption(parser):
    parser.addoption(
        "--compiler",
        choices=["quick", "shipped"],
        default="quick",
        help="quick: spends no time on speed, but in slow tests. shipped: as users have it.",
    )


def pytest_configure(config):
    config.pluginmanager.register(SlowNames(config), "names of slow tests")
    if config.getoption("compiler") == "quick":
        compiler.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    marks = ("slow", "exhaustive", "shipped_compiler")
    compiler.is_on = not any(item.get_closest_marker(mark) for mark in marks)


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
