"""What `print(strategy.statistics())` shows, of records alone."""

import pathlib
from dataclasses import replace

import pytest

from millrace.base.records.run import RunRecords
from millrace.base.records.statistics import FeedStatistics, PipelineStatistics, RunStatistics

pytestmark = pytest.mark.quick

NOTHING = RunStatistics(0, 0, 0, 0.0, FeedStatistics(), PipelineStatistics())
RUN = RunStatistics(
    executions=24,
    dispatches=48,
    compilations=2,
    compile_seconds=5.0,
    infeed=FeedStatistics(24, 2400, 3_200_000, 2.0, 0.5, 2),
    pipeline=PipelineStatistics(),
    cache_hits=1,
    loop_seconds=10.0,
    loop_compile_seconds=4.0,
)


def test_a_table_with_shares_of_the_time():
    assert str(RUN).splitlines() == [
        "fit, evaluate, predict  10.00 s  100.0%  2,400 steps",
        "  compiling              4.00 s   40.0%  2 compiled, 1 from the cache",
        "  waiting for data       0.50 s    5.0%  24 blocks, 3.20 MB",
        "  steps, and Keras       5.50 s   55.0%  24 executions, 48 calls",
        "compiling elsewhere      1.00 s",
    ]


def test_the_record_is_a_line_by_repr():
    assert repr(RUN).startswith("RunStatistics(executions=24, dispatches=48, ")
    assert len(repr(RUN)) < 500


def test_a_run_is_one_line():
    run = RunRecords(
        path=pathlib.Path("runs/7"), damaged={"loops.jsonl": 3}, flights=(None,) * 2000
    )
    shown = "path=PosixPath('runs/7'), flights=<2,000>, damaged={'loops.jsonl': 3}"
    assert repr(run) == f"RunRecords({shown})"
    assert repr(RunRecords(path=pathlib.Path("x"))) == "RunRecords(path=PosixPath('x'))"


def test_of_nothing_nothing_is_divided():
    assert str(NOTHING).splitlines()[0] == "fit, evaluate, predict  0.00 s    0 steps"


def test_shares_add_up_where_programs_are_compiled_in_parallel():
    lines = str(replace(RUN, loop_compile_seconds=30.0, compile_seconds=30.0)).splitlines()
    assert [line.partition(" s ")[2].split()[0] for line in lines] == [
        "100.0%",
        "100.0%",
        "0.0%",
        "0.0%",
    ]


def test_a_pipeline_shows_what_the_host_spends():
    run = replace(RUN, pipeline=PipelineStatistics(executions=1, tasks=96, dispatch_seconds=0.25))
    assert str(run).splitlines()[-1] == "pipeline, on the host    0.25 s          96 tasks"
