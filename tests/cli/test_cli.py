import platform
import subprocess
import sys

import jax
import keras
import pytest
from click.testing import CliRunner

import millrace
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.sequential import batch_serialized
from millrace.run.schedules.text import grid, write
from millrace.run.schedules.zb_v import zb_v
from millrace.tools.cli.main import main

SIZE = ["--stages", "4", "--micro-batches", "8"]


def run(*words, width=100, size=SIZE):
    result = CliRunner().invoke(main, ["simulate", *size, *words], env={"COLUMNS": str(width)})
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def test_the_flags():
    assert " ".join(flag for p in main.params for flag in p.opts) == "--version"
    assert set(main.commands) == {
        *("checkpoint", "compile-log", "launch", "memory", "plan", "port", "poprun"),
        *("report", "run", "simulate"),
    }
    assert " ".join(flag for p in main.commands["compile-log"].params for flag in p.opts) == (
        "--json --recompilations run"
    )
    checkpoint = main.commands["checkpoint"].commands
    assert {name: [p.opts[0] for p in command.params] for name, command in checkpoint.items()} == {
        "list": ["--json", "directory"],
        "verify": ["directory", "step"],
    }
    assert " ".join(flag for p in main.commands["launch"].params for flag in p.opts) == (
        "--processes --devices-per-process --timeout --restarts --no-pin script arguments"
    )
    poprun = [p for p in main.commands["poprun"].params if not getattr(p, "hidden", False)]
    assert " ".join(flag for p in poprun for flag in p.opts) == (
        "--num-replicas --num-instances --ipus-per-replica --timeout --restarts --no-pin command"
    )
    assert " ".join(flag for p in main.commands["simulate"].params for flag in p.opts) == (
        "--stages --micro-batches --schedule --groups --batch-serialization --costs --forward "
        "--backward --backward-input --backward-weight --transfer --dispatch "
        "--gradient-sum --update --summary --text"
    )


def test_the_version_has_what_a_bug_report_needs(monkeypatch):
    first, packages, machine = CliRunner().invoke(main, ["--version"]).output.splitlines()
    assert first == f"millrace {millrace.__version__}"
    for each in (f"jax {jax.__version__}", f"keras {keras.__version__}", "python 3.", "numpy "):
        assert each in packages
    assert machine == f"{platform.platform()}; devices: 8 x cpu (cpu)"

    def fails():
        raise RuntimeError("no driver")

    monkeypatch.setattr(jax, "devices", fails)
    output = CliRunner().invoke(main, ["--version"]).output
    assert output.endswith("devices: RuntimeError('no driver')\n")


def test_draws_a_schedule_with_its_numbers():
    assert [line.rstrip() for line in run().output.splitlines()] == [
        "1f1b: 4 stages, 8 micro-batches",
        "",
        *grid(one_f_one_b(4, 8), width=100).splitlines(),
        "",
        "F forward, B backward, I and W its halves for inputs and weights",
        "",
        "end     33",
        "bubble  27.3%   (textbook, with free transfers: 27.3%)",
        "",
        " an update  time   share",
        " work         24   72.7%",
        " bubble        9   27.3%",
        " total        33  100.0%",
        "",
        " group  stages  idle  activation sets: peak  of each stage",
        " 0      0       9     4                      4",
        " 1      1       9     3                      3",
        " 2      2       9     2                      2",
        " 3      3       9     1                      1",
    ]


def test_several_stages_on_a_group():
    lines = run("--schedule", "looped", "--groups", "2").output.splitlines()
    assert "bubble  5.9%   (textbook, with free transfers: 5.9%)" in lines
    assert lines[-2].split() == ["0", "0,", "2", "3", "5", "4,", "2"]


def test_a_v_of_stages():
    lines = run("--schedule", "V_Half").output.splitlines()
    assert "bubble  5.9%   (textbook, with free transfers: 5.9%)" in lines
    assert lines[-2].split() == ["0", "0,", "3", "3", "4", "3,", "1"]
    assert lines[-1].split() == ["1", "1,", "2", "3", "4", "3,", "2"]
    assert run("--schedule", "zb_v", "--text").output == write(zb_v(4, 8)) + "\n"


def test_stages_that_take_turns_on_one_device():
    words = ["--schedule", "sequential", "--batch-serialization", "3"]
    assert run(*words, "--text").output == write(batch_serialized(4, 8, 3)) + "\n"
    lines = run(*words).output.splitlines()
    assert "bubble  0.0%   (textbook, with free transfers: 0.0%)" in lines
    assert lines[-1].split() == ["0", "0,", "1,", "2,", "3", "0", "12", "3,", "3,", "3,", "3"]


def test_costs_and_transfers():
    output = run("--forward", "0.5", "--backward", "1", "--transfer", "0.25").output
    assert "end     20.5\n" in output
    assert "(textbook, with free transfers: 27.3%)" in output


def test_a_split_backward_takes_as_long_as_a_whole_one():
    lines = run("--schedule", "zero_bubble").output.splitlines()
    assert "end     27" in lines
    assert "bubble  11.1%   (textbook, with free transfers: 11.1%)" in lines


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_gets_blocks(width):
    output = run(width=width).output
    assert output.count("stage 0 |") > 1
    assert max(len(line.rstrip()) for line in output.splitlines()) <= max(width, 64)


def test_prints_the_notation_and_reads_it_again(tmp_path):
    text = run("--text").output
    assert text == write(one_f_one_b(4, 8)) + "\n"
    path = tmp_path / "schedule.txt"
    path.write_text(text)
    output = run("--schedule", str(path)).output
    assert "end     33\n" in output
    assert "bubble  27.3%\n" in output  # no formula for a schedule of one's own


def test_the_notation():
    assert run("--text").stdout == write(one_f_one_b(4, 8)) + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--schedule", "loped"],
            "--schedule 'loped' is no schedule and no file. Did you mean 'loo",
        ),
        (["--schedule", "looped"], "Set --groups to a number below 4, such as 2. Received: None."),
        (["--schedule", "looped", "--groups", "5"], "below 4, such as 2. Received: 5."),
        (["--groups", "2"], "--groups 2 has no effect on --schedule 1f1b"),
        (["--schedule", "v_min", "--groups", "2"], "--groups 2 has no effect on --schedule v_min"),
        (["--schedule", "v_min", "--stages", "5"], "V-Min has two stages on each device group. Re"),
        (["--batch-serialization", "2"], "Received: --schedule 1f1b. Set --schedule sequential."),
        (["--schedule", "0F0 0B0"], "written for 1 micro-batches, and the update has 8"),
    ],
)
def test_errors_are_one_line_and_code_2(words, message):
    result = run(*words)
    assert result.exit_code == 2
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert message in result.output


def test_wrong_flags_are_explained_by_click():
    result = run("--forward", "0")
    assert result.exit_code == 2
    assert "'--forward': 0.0 is not in the range x>0" in result.output


@pytest.mark.slow
def test_runs_as_a_program_and_prints_plain_ascii_into_a_pipe():
    code = "import sys; from millrace.tools.cli.main import main; sys.argv[0] = 'millrace'; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "simulate", *SIZE], capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert b"\x1b" not in result.stdout
