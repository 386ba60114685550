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
        "fit, evaluate, predict     10.00 s 100.0%  2,400 steps",
        "  compiling                 4.00 s  40.0%  2 compiled, 1 from the cache",
        "  waiting for data          0.50 s   5.0%  24 blocks, 3.20 MB",
        "  steps, and Keras          5.50 s  55.0%  24 executions, 48 calls",
        "compiling elsewhere         1.00 s",
    ]


def test_the_record_is_still_shown_whole_by_repr():
    assert repr(RUN).startswith("RunStatistics(executions=24, dispatches=48, ")


class Printer:
    """Takes text, as that of IPython."""

    text = print


def test_a_notebook_shows_what_print_shows(capsys):
    RUN._repr_pretty_(Printer, False)
    assert capsys.readouterr().out == f"{RUN}\n"


def test_a_run_is_one_line():
    run = RunRecords(
        path=pathlib.Path("runs/7"), damaged={"loops.jsonl": 3}, flights=(None,) * 2000
    )
    assert repr(run) == "RunRecords('runs/7': 2,000 flights, 1 damaged)"
    assert repr(RunRecords(path=pathlib.Path("x"))) == "RunRecords('x': no records)"


def test_of_nothing_nothing_is_divided():
    assert str(NOTHING).splitlines()[0] == "fit, evaluate, predict      0.00 s   0.0%  0 steps"


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
    assert str(run).splitlines()[-1] == "pipeline, on the host       0.25 s         96 tasks"


@pytest.mark.parametrize(
    ("run", "hint"),
    [
        (replace(RUN, executions=2400), "steps_per_execution=100"),
        (
            replace(RUN, infeed=replace(RUN.infeed, wait_seconds=3.0)),
            "for 3.0 of 10.0 s. Load several",
        ),
        (
            replace(RUN, recompilations=12, recompile_seconds=4.9),
            "12 programs were compiled again, for 4.9 s. strategy.compile_log",
        ),
    ],
)
def test_a_hint_where_something_can_be_gained(run, hint):
    assert hint not in str(RUN)
    (line,) = [line for line in str(run).splitlines() if line.startswith("Hint: ")]
    assert hint in line


def test_no_hint_about_a_first_try_of_a_few_steps():
    few = replace(RUN, executions=3, infeed=FeedStatistics(1, 3, 10, 0.0, 0.0, 1))
    assert "Hint" not in str(few)
