"""Records that anybody may have written, and the pages and summaries made of them.

What is damaged is left out, or refused by an error of ours: see `damage.py`.
"""

import dataclasses
import json

import pytest
from synthetic import synthetic_run

from damage import both, damaged_bytes, damaged_json, examine, quiet
from millrace.base.records.directory import KINDS, RunDirectory
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.memory_report import (
    DeviceMemory,
    MemoryChange,
    MemoryReport,
    StageMemory,
)
from millrace.base.records.run import last_loop, load, read_compile_log
from millrace.base.records.table_text import RecordRows
from millrace.errors import DataError
from millrace.tools.cli.compile_log import compile_log_command
from millrace.tools.reports.page import page
from millrace.tools.reports.perfetto import write_perfetto
from millrace.tools.reports.summary import Run

pytestmark = both


def all_records():
    run = synthetic_run(layers=3, stages=2, micro_batches=3, updates=2, epochs=2)
    stage = StageMemory(
        stage=0, parameters=5, optimizer_state=5, accumulators=1, temporaries=9, in_flight=0,
        batches=3, other=1,
    )  # fmt: skip
    report = MemoryReport(
        "mlp",
        "(32, 8)",
        (
            DeviceMemory(
                ("cpu:0", "cpu:1"),
                "train",
                (stage,),
                (LiveBuffer("a", 9, "dense", "add"),),
                20,
                (1, 2),
            ),
        ),
        (MemoryChange("model.compile()", 10, 0.25, True),),
    )
    fields = {
        "processes": run.processes, "loops": run.loops, "epochs": run.epochs,
        "executions": run.executions[:3], "feeds": run.feeds[:3],
        "compile_log": run.compilations, "memory": run.memory_profiles[:2],
        "operations": run.operations, "traces": run.traces, "tensors": run.tensors[:3],
        "budgets": run.budgets, "memory_reports": (report,), "flights": run.flights,
    }  # fmt: skip
    assert fields.keys() == KINDS.keys()
    return fields


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """The lines of the files of a run with records of all kinds."""
    directory = RunDirectory(tmp_path_factory.mktemp("valid"))
    for records in all_records().values():
        directory.add(*records)
    return {kind: (directory.path / f"{kind}.jsonl").read_bytes() for kind in KINDS}


def damaged_lines(data, luck):
    if luck.random() < 0.3:
        return damaged_bytes(data, luck)
    parts = data.splitlines()
    at = luck.randrange(len(parts)) if luck.random() < 0.1 else luck.randrange(1, len(parts))
    parts[at] = damaged_json(json.loads(parts[at]), luck).encode()
    return b"\n".join(parts) + b"\n"


def use(run):
    """Looks at all that a run's records show."""
    run = Run(**{each.name: getattr(run, each.name) for each in dataclasses.fields(run)})
    texts = [page([run])]
    rows = [value for name in KINDS if isinstance(value := getattr(run, name, 0), RecordRows)]
    shown = (run, *run.memory_reports, *run.memory_profiles, *run.traces, run.timeline, *rows)
    for each in (*shown, *run.loops):
        assert "\n" not in repr(each)
        texts += str(each), each._repr_html_()
    assert "<script>alert" not in texts[0]
    assert not any("<script" in html for html in texts[2::2])
    for each in (*run.budgets, *run.flights, *run.tensors):
        str(each)
    for timeline in (run.timeline, *(each.timeline for each in run.traces)):
        _ = timeline.in_flight, timeline.peak_in_flight, timeline.bubble
    for profile in run.memory_profiles:
        _ = profile.peak.layers, profile.curve


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_of_a_run(tmp_path, lines, kind, cases):
    """Other records of the run are whole, so that damage meets something to be compared with."""
    for each in ("processes", "loops", "traces"):
        (tmp_path / f"{each}.jsonl").write_bytes(lines[each])
    path = tmp_path / f"{kind}.jsonl"

    def read(luck):
        path.write_bytes(damaged_lines(lines[kind], luck))
        last_loop(tmp_path, 0)
        run = load(tmp_path)
        use(run)
        if run.traces:
            write_perfetto(run, tmp_path / "perfetto.json")

    examine(f"records: {kind}", max(cases // len(KINDS), 4), read, (DataError,), str(path))


def test_several_processes_and_files(tmp_path, lines, cases):
    def read(luck):
        for kind in luck.sample(list(KINDS), 3):
            data = damaged_lines(lines[kind], luck) if luck.random() < 0.5 else lines[kind]
            (tmp_path / f"{kind}{luck.choice(('', '.1'))}.jsonl").write_bytes(data)
        use(load(tmp_path))

    examine("records of processes", cases // 2, read, (DataError,), str(tmp_path))


def test_the_compile_log(tmp_path, lines, cases):
    path = tmp_path / "compile_log.jsonl"

    def read(luck):
        path.write_bytes(damaged_lines(lines["compile_log"], luck))
        read_compile_log(path)
        quiet(compile_log_command.callback, path, luck.random() < 0.3, luck.random() < 0.3)

    examine("compile log", cases // 2, read, (DataError,), str(path))
