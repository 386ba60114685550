"""Lines that say when something is compiled and loaded."""

import logging

import jax
import numpy as np
import pytest

import millrace
from millrace.cache import use
from millrace.compiling import phases
from millrace.errors import OptionError


@pytest.fixture
def lines(caplog):
    """A function that returns what was said since it was last called."""
    caplog.set_level(logging.INFO, "millrace.phases")

    def said():
        found = [r.getMessage() for r in caplog.records if r.name == "millrace.phases"]
        caplog.clear()
        return [line.partition(" (")[0] for line in found]

    return said


START, LOAD = "Starting phase: graphConstruction", "Loading executable"
END = "Ending phase: Loading executable"


@pytest.fixture
def cache(tmp_path):
    use.use_cache(tmp_path)
    yield tmp_path
    use.use_cache(None)
    use._cache.is_explicit = False


@pytest.mark.parametrize("compiler", [millrace.compile, jax.jit])
def test_a_function_is_compiled_once_and_then_says_nothing(strategy, lines, compiler):
    double = compiler(lambda x: x * 2.25)
    strategy.run(double, [np.ones(3, np.float32)])
    assert lines() == [START, LOAD, END]
    strategy.run(double, [np.zeros(3, np.float32)])
    assert lines() == []
    strategy.run(double, [np.zeros(4, np.float32)])
    assert lines() == [START, LOAD, END]


def test_what_the_cache_has_is_only_loaded(strategy, lines, cache):
    x = np.ones(3, np.float32)
    jax.jit(lambda x: x * 7.125 + 1)(x)  # no program of millrace's
    assert lines() == []
    strategy.run(jax.jit(lambda x: x * 7.125), [x])
    assert lines() == [START, LOAD, END]
    jax.clear_caches()
    strategy.run(jax.jit(lambda x: x * 7.125), [x])
    assert lines() == [LOAD, END]
    assert strategy.statistics().cache_hits == 1


def test_an_equal_program_is_loaded_too(strategy, lines):
    for expected in ([START, LOAD, END], [LOAD, END]):
        strategy.run(millrace.compile(lambda x: x * 9.75), [np.ones(3, np.float32)])
        assert lines() == expected


@pytest.fixture
def no_handler():
    level = phases.logger.level
    yield
    phases.logger.setLevel(level)
    phases.logger.handlers.clear()


def test_the_environment_shows_them(monkeypatch, capsys, no_handler):
    monkeypatch.setenv(phases.VARIABLE, "info")
    monkeypatch.setattr(logging.getLogger("millrace"), "propagate", False)  # pytest's handlers
    phases.show_phases()
    phases.show_phases()
    phases.logger.info(START)
    printed = capsys.readouterr().err
    assert printed.count(START) == 1
    assert printed.endswith(f"millrace.phases INFO: {START}\n")


def test_who_prints_what_is_logged_prints_them_once(monkeypatch, capsys, no_handler):
    monkeypatch.setenv(phases.VARIABLE, "INFO")
    phases.show_phases()
    phases.logger.info(START)  # pytest listens
    assert START not in capsys.readouterr().err


def test_no_level(monkeypatch):
    monkeypatch.setenv(phases.VARIABLE, "LOUD")
    with pytest.raises(OptionError, match=r"MILLRACE_LOG_LEVEL=LOUD is no level.*INFO"):
        millrace.Strategy(devices=1)
