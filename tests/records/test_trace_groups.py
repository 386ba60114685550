"""Traces of processes and restarts are put together, and in order."""

import pytest

from millrace.base.records.timeline import Span
from millrace.base.records.trace import ExecutionTrace
from millrace.base.records.trace_groups import update_traces

pytestmark = pytest.mark.quick


def trace(update, began, loop=0, mode="train", process=0):
    return ExecutionTrace(
        model="model",
        mode=mode,
        loop=loop,
        epoch=1,
        update=update,
        began=began,
        num_groups=2,
        process=process,
        spans=(Span(process, "F", 0, process, 0.0, 1.0),),
    )


def order(*traces):
    return [(each.mode, each.loop, each.update) for each in update_traces(traces)]


def test_updates_of_a_loop_stay_in_order_where_a_begin_was_seen_late():
    seen = trace(1, 10.0), trace(2, 14.5), trace(4, 14.0), trace(8, 18.0)
    assert order(*seen) == [("train", 0, update) for update in (1, 2, 4, 8)]
    assert [each.began for each in update_traces(seen)] == [10.0, 14.5, 14.0, 18.0]


def test_loops_that_alternate_are_in_the_order_of_time():
    found = order(trace(1, 10.0), trace(1, 12.0, 1, "test"), trace(2, 14.0), trace(4, 16.0))
    assert found == [("train", 0, 1), ("test", 1, 1), ("train", 0, 2), ("train", 0, 4)]


def test_updates_of_a_run_that_was_started_again_come_after_those_of_the_first():
    assert order(trace(1, 10.0), trace(2, 11.0), trace(1, 20.0), trace(2, 21.0)) == [
        ("train", 0, update) for update in (1, 2, 1, 2)
    ]


def test_processes_of_one_update_become_one_trace():
    one = update_traces([trace(1, 10.0), trace(1, 10.5, process=1), trace(2, 12.0)])
    assert [(each.update, each.began) for each in one] == [(1, 10.0), (2, 12.0)]
    assert [(span.group, span.start) for span in one[0].spans] == [(0, 0.0), (1, 0.5)]
