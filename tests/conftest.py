"""Eight virtual CPU devices, fixed seeds and a quick compiler for every test."""

import gc
import logging
import os
import resource
import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what they run beside them
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["KERAS_BACKEND"] = "jax"
os.environ["MILLRACE_CACHE_DIR"] = "off"  # no test finds what another has compiled

import jax

jax.config.update("jax_num_cpu_devices", 8)

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import millrace  # noqa: E402
import own_threads  # noqa: E402
from millrace.compilation.explain.diagnose import history  # noqa: E402
from quick_compiler import compiler  # noqa: E402
from resources import give_back, resident_bytes  # noqa: E402
from shares import Share  # noqa: E402

MOST_MEMORY = 11 << 27  # of a worker (1.4 GiB), so that two and their children fit into 4 GiB
MORE_MEMORY = 1 << 28  # that is worth looking for what can be let go

# What is imported stays, and most of what tests make is gone without a search: a quarter of the
# time of the tests was the collector's.
gc.freeze()
gc.set_threshold(100_000, 10, 10)

held = 0  # bytes, after the worker has last let go of what it could


def pytest_addoption(parser):
    parser.addoption(
        "--compiler",
        choices=["quick", "shipped"],
        default="quick",
        help="quick: spends no time on speed. shipped: as users have it, in every test.",
    )
    parser.addoption(
        "--share",
        type=Share.of_text,
        help="K/N: of the slow tests the K-th of N shares, and those that are in every share.",
    )


def pytest_collection_modifyitems(config, items):
    """Leaves out the slow tests of other shares."""
    share = config.getoption("share")
    if share is not None:
        kept = [item for item in items if share.has(item)]
        config.hook.pytest_deselected(items=list(set(items).difference(kept)))
        items[:] = kept


def pytest_configure(config):
    if config.getoption("compiler") == "quick":
        compiler.install()


def pytest_terminal_summary(terminalreporter):
    """Says what the run has cost: by now its workers, and what they started, have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    terminalreporter.write_line(
        f"CPU time, user + system, of all processes: {seconds:.0f} s ({seconds / 60:.1f} minutes)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    own_threads.begin()
    marks = ("exhaustive", "shipped_compiler")
    compiler.is_on = item.get_closest_marker("quick_compiler") is not None or not any(
        item.get_closest_marker(mark) for mark in marks
    )


def pytest_runtest_teardown(item, nextitem):
    """Between files, forgets what was compiled; lets go of it when it fills the memory."""
    global held
    if nextitem is None or nextitem.path == item.path:
        return
    history.clear()
    if resident_bytes() > max(MOST_MEMORY, held + MORE_MEMORY):
        jax.clear_caches()
        gc.collect()
        give_back()
        held = resident_bytes()


@pytest.fixture(autouse=True)
def heard_logger():
    """Lets tests hear the log, whatever an earlier test, or a library that it imported, has set."""
    logging.disable(logging.NOTSET)
    logging.getLogger().setLevel(logging.WARNING)
    logger = logging.getLogger("millrace")
    logger.disabled, logger.propagate = False, True
    logger.setLevel(logging.NOTSET)


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
