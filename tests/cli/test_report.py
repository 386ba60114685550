"""`millrace report`: the page of a run, and its summary on a terminal."""

import json
import os
import pathlib
import shutil
import socket
import time
import webbrowser

import pytest
from click.testing import CliRunner

from millrace.base.records.compilation import CompileRecord
from millrace.base.records.directory import RunDirectory
from millrace.base.records.loops import EpochRecord, ExecutionSample, LoopRecord, ProcessRecord
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.operations import OperationGroup, ProgramOperations
from millrace.base.records.program_memory import MemoryArea, ProgramMemory
from millrace.base.records.trace import ExecutionTrace
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule
from millrace.tools.cli.main import main

GONE = 2**22 + 1  # above the highest number of a process


def of_process(pid=GONE, **fields):
    values = {"process": 0, "host": socket.gethostname(), "cores": 2, "began": time.time()}
    return ProcessRecord(
        **{**values, "pid": pid, "platform": "cpu", "devices": ("cpu:0", "cpu:1"), **fields}
    )


def of_loop(**fields):
    values = {"number": 0, "model": "mlp", "mode": "train", "began": 100.0, "ended": 110.0}
    numbers = {"stages": 2, "epochs": 3, "steps": 60, "executions": 6, "compile_seconds": 4.0}
    return LoopRecord(**{**values, **numbers, "outcome": "finished", **fields})


def of_update(micro_batches=3):
    timeline = simulate(make_schedule("1f1b", 2, micro_batches, (0, 1)), UNIT_COST)
    return ExecutionTrace(
        model="mlp", mode="train", loop=0, epoch=1, update=0, began=105.0, num_groups=2,
        schedule="1f1b", spans=timeline.spans,
    )  # fmt: skip


def of_memory(layer="dense_1"):
    return ProgramMemory(
        model="mlp",
        program="train_forward of stage 1",
        requirement=5000,
        areas=(MemoryArea("parameters", (1000, 1000)), MemoryArea("activations", (0, 2500))),
        point=1,
        alive=(LiveBuffer("tanh.1", 2500, layer, "fusion"), LiveBuffer("w", 1000, "out", "")),
    )


def of_operations():
    groups = (
        OperationGroup("dense_1", "layer", "forward", 3, 2e9, 1e6, 0.004),
        OperationGroup("SGD", "optimizer", "update", 2, 1e3, 1e3),
        OperationGroup("accumulation", "accumulation", "", 1, 1e3, 1e3),
    )
    return ProgramOperations(model="mlp", program="train_run", groups=groups)


def of_compilation():
    return CompileRecord("mlp", "train_run", "f32[4,8]", 1, None, 1.0, 3.0, 0, began=100.0)


RECORDS = (of_loop(), of_update(), of_memory(), of_operations(), of_compilation())


def written(path, *records):
    directory = RunDirectory(path)
    for record in records:
        directory.add(record)
    return path


def report(*words, code=0, width=110):
    result = CliRunner().invoke(main, ["report", *map(str, words)], env={"COLUMNS": str(width)})
    assert result.exit_code == code, result.output
    return result


def squeezed(text):
    return " ".join(text.split())


def test_the_flags():
    assert " ".join(flag for p in main.commands["report"].params for flag in p.opts) == (
        "--compare --output --perfetto --open runs"
    )


def test_prints_a_summary_and_writes_a_page(tmp_path):
    path = written(tmp_path / "run", of_process(), *RECORDS)
    result = report(path, width=200)
    text = squeezed(result.stdout)
    assert f"run {path} (it has ended)" in text
    assert "train of mlp on 2 stages, 3 epochs, 60 steps in 6 executions, 10.00 s" in text
    assert "devices cpu:0, cpu:1" in text
    assert "compile 4.00 s (40%)" in text
    assert "limit compile: Compiling took 4.00 of 10.00 s (40 %)" in text
    assert "stage 0 |F0--" in result.stdout
    assert "bubble 25.0% of an update" in text
    assert "train_forward of stage 1 3.50 KB dense_1 2.50 KB, out 1.00 KB" in text
    assert "dense_1 layer 3 2 1.00 MB 4 ms" in text
    assert "SGD optimizer" in text
    assert "accumulation" in text
    assert "compiled 1 executable in 4.00 s added up, 0 again" in text
    assert result.stdout.rstrip().endswith(f"The page is {path}/report.html")
    assert '"mlp"' in (path / "report.html").read_text()


def test_the_newest_run_of_a_directory_is_taken_and_named(tmp_path):
    old = written(tmp_path / "1", of_process())
    new = written(tmp_path / "2", of_process())
    for file in old.iterdir():
        os.utime(file, (1, 1))
    result = report(tmp_path)
    assert result.stderr == f"The newest run in {tmp_path} is {new}\n"
    assert (new / "report.html").exists()
    assert not (old / "report.html").exists()


def cut(path):
    file = path / "loops.jsonl"
    file.write_bytes(file.read_bytes()[:-20])


def spoil(path):
    for file in path.iterdir():
        lines = file.read_text().splitlines()
        lines[1:] = ['{"no": "record"}', "[1, 2]", "null", "\x00\x01", "{}" * 9, *lines[1:]]
        file.write_text("\n".join(lines))


def spoil_log(path):
    (path / "compile_log.jsonl").unlink()
    spoil(path)


def without_headers(path):
    for file in path.iterdir():
        file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))


DAMAGED = [
    (cut, "damaged lines that could not be read"),
    (spoil_log, "damaged lines that could not be read"),
    (without_headers, "train of mlp"),
    (lambda path: (path / "loops.jsonl").write_bytes(b""), "No loop of this run"),
    (lambda path: (path / "loops.jsonl").unlink(), "No loop of this run"),
    (lambda path: (path / "processes.jsonl").unlink(), "no record of its processes"),
    (lambda path: shutil.copy(path / "epochs.jsonl", path / "epochs.1.jsonl"), "train of mlp"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGED)
def test_damaged_records_are_shown_as_far_as_they_go(tmp_path, damage, text):
    epoch = EpochRecord(loop=0, epoch=1, ended=104.0, logs={"loss": float("nan")})
    path = written(tmp_path / "run", of_process(), epoch, *RECORDS)
    damage(path)
    assert text in squeezed(report(path).stdout)


@pytest.mark.parametrize(
    ("pid", "state", "outcome"), [(GONE, "killed", "killed"), (0, "it is running", "running")]
)
def test_a_run_without_an_end_goes_on_or_was_killed(tmp_path, pid, state, outcome):
    """Both come from what it has left: the second epoch, in which it was seen last."""
    loop = of_loop(ended=0.0, outcome="running", epochs=1, steps=0, executions=0)
    epochs = [EpochRecord(loop=0, epoch=each, ended=100.0 + 4 * each) for each in (1, 2)]
    sample = ExecutionSample(
        loop=0, mode="train", epoch=1, began=101.0, seconds=5, steps=60, executions=6
    )
    path = written(tmp_path / "run", of_process(pid or os.getpid()), loop, sample, *epochs)
    text = squeezed(report(path, width=200).stdout)
    seen = time.strftime(", last seen %Y-%m-%d %H:%M:%S", time.localtime(108))
    assert f"({state}{seen if state == 'killed' else ''})" in text
    assert f"at least 2 epochs, 60 steps in 6 executions, 8.00 s, {outcome}" in text
    page = (path / "report.html").read_text()
    assert f'"outcome":"{outcome}","seen":108.0' in page


def test_an_error_of_the_run_is_shown(tmp_path):
    loop = of_loop(outcome="failed", error="ValueError: [red]no[/red] \x1b[31m \u2603")
    text = report(written(tmp_path / "run", loop), width=200).stdout
    assert r"failed: ValueError: [red]no[/red] \x1b[31m \u2603" in text


def test_compares_two_runs(tmp_path):
    paths = [written(tmp_path / name, of_process(), *RECORDS) for name in ("a", "b")]
    for words in ((*paths, "--compare"), (paths[0], "--compare", paths[1])):
        text = report(*words).stdout
        assert text.count("train of mlp") == 2
        page = paths[0] / "report_b.html"
        assert squeezed(text).endswith(f"The page is {page}")
        page.unlink()


def test_a_pipe_that_is_closed_early_leaves_a_new_page(tmp_path, monkeypatch):
    written(tmp_path, of_process(), *RECORDS)

    def show(run, console):
        raise BrokenPipeError

    monkeypatch.setattr("millrace.tools.cli.report.print_summary", show)
    CliRunner().invoke(main, ["report", str(tmp_path)])
    assert (tmp_path / "report.html").exists()


def test_writes_where_it_is_told(tmp_path):
    path = written(tmp_path / "run", of_process(), *RECORDS)
    report(path, "--output", tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").stat().st_size > 1000
    assert not (path / "report.html").exists()


def test_writes_a_trace_for_perfetto(tmp_path):
    path = written(tmp_path / "run", of_process(), *RECORDS)
    result = report(path, "--perfetto", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {"0F0", "1B2"} <= {each["name"] for each in events}
    assert "trace.json has 1 traces" in result.stderr
    assert (path / "report.html").exists()


MISTAKES = [
    (["{run}", "--perfetto", "trace.json"], "run has no traces"),
    (["{run}", "--compare"], "--compare shows two runs side by side. Received 1"),
    (["{run}", "{run}"], "Received 2: give one directory, or two and --compare"),
    (["{run}/none"], "does not exist"),
    (["{run}/loops.jsonl"], "is a file"),
    (["{empty}"], "has no records of a run. Set Strategy(report_dir=...)"),
    (["{run}", "--output", "{run}/loops.jsonl/page.html"], "cannot be written"),
    ([], "Missing argument"),
]


@pytest.mark.parametrize(("words", "text"), MISTAKES)
def test_mistakes(tmp_path, words, text):
    path = written(tmp_path / "run", of_loop())
    (tmp_path / "empty").mkdir()
    words = [word.format(run=path, empty=tmp_path / "empty") for word in words]
    assert text in squeezed(report(*words, code=2).stderr)


@pytest.mark.parametrize(
    ("words", "text"),
    [(["--perfetto", "none/trace.json"], "cannot be written"), (["--compare"], "of one run")],
)
def test_mistakes_about_traces(tmp_path, words, text):
    path = written(tmp_path / "run", *RECORDS)
    runs, trace = ([path, path], "trace.json") if "--compare" in words else ([path], tmp_path)
    words = [*runs, *words] + (["--perfetto", trace] if "--compare" in words else [])
    words = [tmp_path / word if word == "none/trace.json" else word for word in words]
    assert text in squeezed(report(*words, code=2).stderr)


def test_records_of_a_newer_millrace_are_refused(tmp_path):
    path = written(tmp_path / "run", of_loop())
    header = {"format": "millrace records", "version": 99, "kind": "loops"}
    (path / "loops.jsonl").write_text(json.dumps(header))
    assert "version 99" in report(path, code=2).stderr


@pytest.mark.parametrize("opened", [True, False])
def test_opens_the_page_or_says_its_address(tmp_path, monkeypatch, opened):
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda address: addresses.append(address) or opened)
    path = written(tmp_path / "run", of_loop())
    result = report(path, "--open")
    assert addresses == [pathlib.Path(path / "report.html").as_uri()]
    assert ("There is no browser to open" in result.stderr) != opened


@pytest.mark.parametrize("width", [40, 72, 0])
def test_any_width(tmp_path, width):
    path = written(tmp_path / "run", of_process(), *RECORDS, of_update(40))
    assert "The page is" in report(path, width=width).stdout
