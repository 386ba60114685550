"""Cuts by the measured times of stages."""

import pytest

from millrace.run.pipelines.assignment.balance import balance
from millrace.tools.planning.measuring import as_measured


def test_calls_share_the_time_of_their_stage():
    times = as_measured([4.0, 4.0, 4.0, 4.0], [0, 0, 1, 1], [6.0, 2.0])
    assert times == [3.0, 3.0, 1.0, 1.0]
    edges = [(), (0,), (1,), (2,)]
    assert balance([4.0, 4.0, 4.0, 4.0], edges, 2) == (0, 0, 1, 1)
    assert balance(times, edges, 2) == (0, 1, 1, 1)  # as drawn in the module


def test_calls_without_flops_share_equally():
    assert as_measured([0.0, 0.0, 5.0], [0, 0, 1], [1.0, 3.0]) == pytest.approx([0.5, 0.5, 3.0])
