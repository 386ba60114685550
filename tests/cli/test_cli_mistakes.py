"""Mistakes on the command line: each ends with one message that says what to write instead."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from millrace.tools.cli.main import main

SIZES = "simulate --stages 4 --micro-batches 4"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with what users give by mistake."""
    place = tmp_path_factory.mktemp("mistakes")
    (place / "directory").mkdir()
    (place / "empty.py").write_text("")
    (place / "empty.txt").write_text("\n")
    (place / "binary.py").write_bytes(b"\xff\xfe\x00bin")
    (place / "broken.py").write_text('x = 1\nprint("hi"\n')
    (place / "imports_broken.py").write_text("import broken_module_of_cli\n")
    (place / "broken_module_of_cli.py").write_text("def f(:\n")
    (place / "data.csv").write_text("a,b\n1,2\n")
    (place / "plain.py").write_text("import millrace\n")
    (place / "status.py").write_text("raise SystemExit(3)\n")
    (place / "old.py").write_text("import tensorflow as tf\n")
    return place


@pytest.fixture
def run(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])

    def invoke(line, **environment):
        result = CliRunner().invoke(main, line.split(), env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return invoke


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("simulate --stages 0 --micro-batches 4", "Invalid value for '--stages': 0 is not in"),
        ("simulate --stages -1 --micro-batches 4", "Invalid value for '--stages': -1 is not in"),
        ("simulate --stages 4 --micro-batches 0", "Invalid value for '--micro-batches': 0 is not"),
        ("simulate --stages 2.5 --micro-batches 4", "'2.5' is not a valid integer"),
        ("simulate --stages 4", "Missing option '--micro-batches'"),
        (
            "simulate --stages 1000 --micro-batches 100000",
            "--stages 1000 x --micro-batches 100000 is more than the 262,144 forwards of such a "
            "schedule. Set --micro-batches to 262 or fewer",
        ),
        (
            "simulate --stages 1000 --micro-batches 1000 --text",
            "--micro-batches 1000 is more than the 100,000 forwards that can be drawn. Set --mic",
        ),
        (
            "simulate --stages 1000 --micro-batches 1000 --schedule sequential",
            "is more than the 100,000 forwards of such a schedule. Set --micro-batches to 100 or",
        ),
        (f"{SIZES} --schedule 1f1", "--schedule '1f1' is no schedule and no file. Did you mean '1"),
        (f"{SIZES} --schedule directory", "--schedule 'directory' is no schedule and no file. Use"),
        (f"{SIZES} --schedule empty.txt", "--schedule 'empty.txt' is a file without tasks. Write"),
        (f"{SIZES} --schedule binary.py", "--schedule 'binary.py' is a file without tasks. Write"),
        (f"{SIZES} --schedule data.csv", "Line 1 of the schedule: 'a' is no task. Write stage"),
        (f"{SIZES} --schedule 0F0", "or set --micro-batches 1."),
        (f"{SIZES} --forward nan", "Invalid value for '--forward': nan is not a finite number"),
        (f"{SIZES} --backward inf", "Invalid value for '--backward': inf is not a finite number"),
        (f"{SIZES} --forward 0", "Invalid value for '--forward': 0.0 is not in the range x>0"),
        (f"{SIZES} --transfer nan", "Invalid value for '--transfer': nan is not a finite number"),
        (f"{SIZES} --groups 0", "Invalid value for '--groups': 0 is not in the range x>=1"),
        ("compile-log nowhere", "Path 'nowhere' does not exist"),
        ("compile-log directory", "directory has no compile log. Set Strategy(report_dir=...)"),
        ("compile-log data.csv", "Line 1 of data.csv is not a record of a compilation. Give the"),
        ("compile-log plain.py", "Line 1 of plain.py is not a record of a compilation"),
        ("compile-log binary.py", "Line 1 of binary.py is not a record of a compilation"),
        ("launch plain.py", "Missing option '--processes'"),
        ("launch --processes 0 plain.py", "Invalid value for '--processes': 0 is not in the ran"),
        ("launch --processes 2", "Missing argument 'SCRIPT'"),
        ("launch --processes 2 nowhere.py", "File 'nowhere.py' does not exist"),
        ("launch --processes 2 directory", "File 'directory' is a directory"),
        ("launch --processes 2 --timeout 0 plain.py", "'--timeout': 0.0 is not in the range x>0"),
        ("launch --processes 2 --timeout inf plain.py", "inf is not a finite number"),
        ("launch --processes 2 --restarts -1 plain.py", "'--restarts': -1 is not in the range"),
        ("launch --processes 2 --devices-per-process 0 plain.py", "0 is not in the range x>=1"),
        ("port", "Missing argument 'SCRIPTS...'"),
        ("port nowhere.py", "nowhere.py: cannot be read: [Errno 2] No such file"),
        ("port directory", "directory: cannot be read: [Errno 21] Is a directory"),
        ("port binary.py", "binary.py: cannot be read: invalid or missing encoding declaration"),
        (
            "port broken.py",
            "broken.py: cannot be read: '(' was never closed (<unknown>, line 2)",
        ),
        ("run nowhere.py", "File 'nowhere.py' does not exist"),
        ("run directory", "File 'directory' is a directory"),
        ("run broken.py", "broken.py, line 2: this is not a Python program: '(' was never closed"),
        ("run binary.py", "binary.py: this is not a Python program: source code string cannot"),
        ("nope", "No such command 'nope'"),
        ("--nope", "No such option"),
    ],
)
def test_a_mistake_is_one_message(run, line, message):
    result = run(line)
    output = " ".join((result.stdout + result.stderr).split())
    assert " ".join(message.split()) in output
    assert result.exit_code in (1, 2)
    assert "Traceback" not in output
    assert output.count("Error") + output.count("cannot be read") <= 1 or "Usage" in output


def test_a_scripts_own_status_is_passed_on(run):
    assert run("run status.py").exit_code == 3


def test_an_error_in_a_module_of_the_script_keeps_its_traceback(run):
    result = run("run imports_broken.py")
    assert result.exit_code == 1
    assert 'imports_broken.py", line 1' in result.stderr
    assert "cli_porting" not in result.stderr


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("compile-log empty.py", "executables      0, 0.00 s"),
        ("port plain.py", "1 file: nothing to port, as tensorflow and ipu packages are not im"),
        ("port old.py", "1 file: nothing stands in the way. Run it with `millrace run`."),
        ("port plain.py old.py", "2 files: nothing stands in the way. Run it with `millrace"),
        ("simulate --stages 1 --micro-batches 1", "bubble  0.0%"),
        (f"{SIZES} --schedule looped --groups 3", "bubble  "),
        (f"{SIZES} --schedule sequential --batch-serialization 9", "bubble  0.0%"),
    ],
)
def test_what_looks_like_a_mistake_and_works(run, line, output):
    result = run(line)
    assert output in result.stdout
    assert result.exit_code == 0


@pytest.mark.parametrize("columns", ["0", "1", "40", "many"])
def test_odd_terminals(run, columns):
    result = run(SIZES, COLUMNS=columns, NO_COLOR="1", TERM="dumb")
    assert "bubble  42.9%" in result.stdout
    assert "\x1b" not in result.stdout


def test_no_color_on_a_terminal(run):
    assert "\x1b[3" not in run(SIZES, FORCE_COLOR="1", NO_COLOR="1").stdout


@pytest.mark.slow
def test_a_pipe_that_is_closed_early_ends_quietly():
    code = "import sys; from millrace.tools.cli.main import main; sys.argv[0] = 'millrace'; main()"
    size = ["--stages", "8", "--micro-batches", "2000", "--text"]  # more than a pipe holds
    with subprocess.Popen(
        [sys.executable, "-c", code, "simulate", *size],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.read(10)
        process.stdout.close()
        assert all(line.startswith(b"simulating") for line in process.stderr.read().splitlines())
        assert process.wait(60) in (0, 1)
