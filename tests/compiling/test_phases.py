"""Lines that say when something is compiled and loaded."""

import logging
import re

import jax
import numpy as np
import pytest

import millrace
from millrace.compilation.cache import use
from millrace.compilation.executables import phases
from millrace.errors import OptionError


@pytest.fixture(autouse=True)
def native_words(monkeypatch):
    """Whatever other tests have imported."""
    monkeypatch.setattr(phases._Current, "phrases", phases.Phrases())


@pytest.fixture
def lines(caplog):
    """A function that returns what was said since it was last called."""
    caplog.set_level(logging.INFO, "millrace.phases")

    def said():
        found = [r.getMessage() for r in caplog.records if r.name == "millrace.phases"]
        caplog.clear()
        return [line.partition(" ")[0] for line in found]

    return said


START, LOAD = "Compiling", "Loaded"


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
    assert lines() == [START, LOAD]
    strategy.run(double, [np.zeros(3, np.float32)])
    assert lines() == []
    strategy.run(double, [np.zeros(4, np.float32)])
    assert lines() == [START, LOAD]


def test_what_the_cache_has_is_only_loaded(strategy, lines, cache):
    x = np.ones(3, np.float32)
    jax.jit(lambda x: x * 7.125 + 1)(x)  # no program of millrace's
    assert lines() == []
    strategy.run(jax.jit(lambda x: x * 7.125), [x])
    assert lines() == [START, LOAD]
    jax.clear_caches()
    strategy.run(jax.jit(lambda x: x * 7.125), [x])
    assert lines() == [LOAD]
    assert strategy.statistics().cache_hits == 1


def test_an_equal_program_is_loaded_too(strategy, lines):
    for expected in ([START, LOAD], [LOAD]):
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


NUMBERS = r"0 ms; process [+-]\d+\.\d MB"
REPLACED = phases.Phrases("one", ("two %(program)s", "%(megabytes)f"))


@pytest.mark.parametrize(
    ("phrases", "expected"),
    [
        (phases.Phrases(), ["Compiling twice", rf"Loaded twice \({NUMBERS}\)"]),
        (REPLACED, ["one", "two twice", r"-?\d+\.\d+"]),
    ],
    ids=["native", "replaced"],
)
def test_lines_name_the_program_in_words_that_can_be_replaced(strategy, caplog, phrases, expected):
    def twice(x):
        return x * len(expected)

    caplog.set_level(logging.INFO, "millrace.phases")
    phases.use_phrases(phrases)
    strategy.run(jax.jit(twice), [np.ones(5, np.float32)])
    said = [r.getMessage() for r in caplog.records if r.name == "millrace.phases"]
    assert len(said) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, said, strict=True))


def test_no_level(monkeypatch):
    monkeypatch.setenv(phases.VARIABLE, "LOUD")
    with pytest.raises(OptionError, match=r"MILLRACE_LOG_LEVEL=LOUD is not a level.*INFO"):
        millrace.Strategy(devices=1)
