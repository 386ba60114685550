"""`millrace compile-log`."""

import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from millrace.base.records.compilation import CompileRecord, Origin
from millrace.tools.cli.main import main

pytestmark = pytest.mark.quick

FIRST = CompileRecord(
    model="mlp",
    program="train_run",
    batch="float32[32,28], int32[32]",
    capacity=32,
    unrolled=None,
    trace_seconds=0.25,
    lower_seconds=0.125,
    compile_seconds=1.5,
    temporary_bytes=1000,
    peak_bytes=2_500_000,
    code_bytes=12_345,
    cause="the first program of this name",
    began=1000.0,
)
AGAIN = CompileRecord(
    model="[bold]",
    program="train_run",
    batch="float32[17,28], int32[17]",
    capacity=1,
    unrolled=None,
    trace_seconds=0.0,
    compile_seconds=0.5,
    temporary_bytes=0,
    origin=Origin.CACHE,
    cause="argument x: shape (32, 28) \N{RIGHTWARDS ARROW} (17, 28)",
    remedy="Set drop_remainder=True to leave the last batch out. " * 4,
    is_recompilation=True,
    began=1003.0,
)
SWITCH = CompileRecord(
    model="",
    program="test of 'mlp'",
    batch="",
    capacity=0,
    unrolled=None,
    trace_seconds=0.0,
    compile_seconds=0.0,
    temporary_bytes=0,
    origin=Origin.SWITCH,
    cause="from train of 'mlp' to test of 'mlp'",
    count=3,
    began=1002.0,
)


def line(record, **more):
    return json.dumps({**asdict(record), "origin": record.origin.value, **more}) + "\n"


@pytest.fixture
def run(tmp_path):
    """A run of two processes, the second of which was killed while it wrote."""
    first = line(FIRST) + line(SWITCH).replace('"count": 3', '"count": 1') + line(SWITCH)
    (tmp_path / "compile_log.jsonl").write_text(first)
    killed = line(AGAIN, newer_field=[1]) + line(FIRST)[:70]
    (tmp_path / "compile_log.1.jsonl").write_text(killed)
    return tmp_path


def show(*words, width=120):
    words = [str(word) for word in words]
    result = CliRunner().invoke(main, ["compile-log", *words], env={"COLUMNS": str(width)})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_all_processes_in_the_order_of_time(run):
    output = show(run).output
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0] == "# began program model batch how trace lower XLA peak code"
    assert lines[1].endswith(
        " train_run mlp float32[32,28], int32[32] compiled 0.25 s 0.12 s 1.50 s 2.50 MB 12.35 KB"
    )
    assert lines[2].endswith(" test of 'mlp' switch x3")
    assert " train_run [bold] float32[17,28], int32[17] cache 0.00 s " in lines[3]
    assert lines[5].startswith("1 train_run: the first program")
    assert lines[6].startswith("3 train_run is compiled again: argument x: shape (32, 28) \\u2192 ")
    assert lines[7].startswith("Set drop_remainder=True to leave")
    assert lines[-3:] == [
        "executables 2 (1 compiled, 1 cache), 2.38 s",
        "recompilations 1, 0.50 s lost",
        "switches 3",
    ]
    assert output.isascii()


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_has_one_column_of_time(run, width):
    output = show(run, width=width).output
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0] == "# program model batch how time peak"
    assert lines[1] == "1 train_run mlp float32[32,28], int32[32] compiled 1.88 s 2.50 MB"
    assert max(map(len, output.splitlines())) <= width


def test_a_tiny_terminal_loses_nothing(run):
    lines = show(run, width=40).output.splitlines()
    assert lines == show(run, width=72).output.splitlines()
    assert lines[0].split() == ["#", "program", "model", "batch", "how", "time", "peak"]


def test_no_column_of_machine_code_where_nobody_knows_its_size(run):
    (run / "compile_log.jsonl").write_text(line(replace(FIRST, code_bytes=0)))
    header, first = show(run).output.splitlines()[:2]
    assert header.split()[-1] == "peak"
    assert first.split()[-2:] == ["2.50", "MB"]


def test_numbers_are_those_of_the_whole_log(run):
    rows = [line.split() for line in show(run, "--recompilations").output.splitlines()]
    assert rows[1][0] == "3"
    assert rows[3][:2] == ["3", "train_run"]


def test_a_file_of_the_directory(run):
    assert "executables      1 (1 compiled)" in show(run / "compile_log.jsonl").output


def test_only_what_was_compiled_again(run):
    output = show(run, "--recompilations").output
    assert "the first program" not in output
    assert "switch x3" not in output
    assert "drop_remainder" in output
    assert "executables      2 " in output  # the totals are of all


def test_json(run):
    found = json.loads(show(run, "--json").output)
    assert [each["origin"] for each in found["records"]] == ["compiled", "switch", "cache"]
    assert found["records"][2]["cause"] == AGAIN.cause
    assert {name: found[name] for name in found if name != "records"} == {
        "executables": 2,
        "seconds": 2.375,
        "recompilations": 1,
        "recompilation_seconds": 0.5,
        "switches": 3,
    }
    found = json.loads(show(run, "--json", "--recompilations").output)
    assert [each["batch"] for each in found["records"]] == [AGAIN.batch]


def test_a_run_that_has_compiled_nothing(tmp_path):
    (tmp_path / "compile_log.jsonl").write_text("")
    assert show(tmp_path).output.splitlines()[0] == "executables      0, 0.00 s"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no compile log. Set Strategy(report_dir=...) to a directory, and give"),
        ('{"origin": "compiled"}\n', "Line 1 of "),
        ('{"origin": "elsewhere"}\n', "Line 1 of "),
        (line(FIRST) + "[1, 2]\n", "Line 2 of "),
        (
            b"\xff\xfe\x00",
            "is not a record of a compilation. Give the directory of Strategy(report_",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, content, message):
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "compile_log.jsonl").write_bytes(data)
    result = show(tmp_path)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_run_that_is_not_there(tmp_path):
    result = show(tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
