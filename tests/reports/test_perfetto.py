"""The file for Perfetto: what its format asks for, and what the traces hold."""

import json
from collections import defaultdict

import pytest

from millrace.base.records.run import RunRecords
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule
from millrace.tools.reports.perfetto import perfetto, write_perfetto


def run_of(tmp_path, number=2, model="m"):
    timeline = simulate(make_schedule("1f1b", 2, 4, (0, 1)), UNIT_COST)
    traces = tuple(
        ExecutionTrace(
            model=model,
            mode="train",
            loop=0,
            epoch=1,
            update=update,
            began=1000.0 + 100 * update,
            num_groups=2,
            spans=timeline.spans,
            activities=(
                ActivitySpan("host", "dispatch of update 1", 0.0, 2.0),
                ActivitySpan("group 0", "update", 15.0, 16.0),
                ActivitySpan("infeed of process 1", "block of 4 steps", 1.0, 3.0),
            ),
        )
        for update in range(number)
    )
    return RunRecords(path=tmp_path, traces=traces)


def check_format(trace):
    """What the Trace Event Format asks of complete events and of metadata."""
    named = defaultdict(set)
    for event in trace["traceEvents"]:
        assert event["ph"] in "XM"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            named[event["name"]].add((event["pid"], event["tid"]))
        else:
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in named["thread_name"]
            assert (event["pid"], 0) in named["process_name"]
    tids = [tid for _, tid in named["thread_name"]]
    assert len(set(tids)) == len(tids)  # Chrome takes threads of two processes for one otherwise


def test_rows_tasks_and_twins(tmp_path):
    file = tmp_path / "trace.json"
    run = run_of(tmp_path)
    write_perfetto(run, file)
    trace = json.loads(file.read_text())
    check_format(trace)
    events = trace["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["fit of 'm', measured", "fit of 'm', simulated"]
    rows = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert rows == [
        "group 0", "group 1", "infeed of process 1", "host", "group 0", "group 1"
    ]  # fmt: skip
    tasks = [e for e in events if e["ph"] == "X" and "stage" in e["args"]]
    assert len(tasks) == 2 * 2 * 16  # updates, measured and simulated, tasks
    first = next(e for e in tasks if e["name"] == "1B2")
    assert first["args"] == {
        "stage": 1, "pass": "backward", "micro-batch": 2, "update": 0, "epoch": 1, "loop": 0
    }  # fmt: skip
    assert first["dur"] == 2e6
    assert {e["ts"] for e in tasks if e["name"] == "0F0"} == {0.0, 100e6}


def test_a_run_without_traces(tmp_path):
    assert perfetto(RunRecords(path=tmp_path))["traceEvents"] == []


def test_a_name_with_markup_stays_a_name(tmp_path):
    trace = perfetto(run_of(tmp_path, model="</script><b>"))
    check_format(json.loads(json.dumps(trace)))


def test_perfetto_reads_the_file(tmp_path):
    """With Perfetto's own trace processor, where its package has one."""
    processor = pytest.importorskip("perfetto.trace_processor")
    file = tmp_path / "trace.json"
    write_perfetto(run_of(tmp_path), file)
    try:
        opened = processor.TraceProcessor(trace=str(file))
    except Exception as error:  # the package fetches its program
        pytest.skip(f"no trace processor: {error}")
    found = list(opened.query("select name, dur from slice where name = '1B2'"))
    assert len(found) == 4
    opened.close()
