"""The collector of garbage runs rarely while many objects are made."""

import gc
import subprocess
import sys

import pytest

from millrace.base.collector import fewer_collections


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield before
    gc.set_threshold(*before)


def test_the_thresholds_come_back_when_the_last_context_ends(thresholds):
    with fewer_collections():
        first = gc.get_threshold()
        with fewer_collections():
            assert gc.get_threshold() == first
        assert gc.get_threshold() == first
    assert first[0] == 100_000
    assert gc.get_threshold() == thresholds


def test_an_error_ends_the_context(thresholds):
    with pytest.raises(ZeroDivisionError), fewer_collections():
        1 / 0  # noqa: B018
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("threshold", [0, 200_000])
def test_a_collector_that_runs_more_rarely_is_left_alone(thresholds, threshold):
    gc.set_threshold(threshold, 10, 10)
    with fewer_collections():
        assert gc.get_threshold()[0] == threshold
    assert gc.get_threshold()[0] == threshold


def test_thresholds_that_are_set_meanwhile_stay(thresholds):
    with fewer_collections():
        gc.set_threshold(900, 10, 10)
    assert gc.get_threshold() == (900, 10, 10)


def test_the_import_leaves_the_thresholds_as_they_were():
    program = (
        "import gc; before = gc.get_threshold()\n"
        "import millrace; print(before == gc.get_threshold())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True"]
