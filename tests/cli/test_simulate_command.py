"""`millrace simulate` with the costs of an update: options, a measured run, and large sizes."""

import re

import pytest
from click.testing import CliRunner

from millrace.base.records.directory import RunDirectory
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.compilation.executables import progress
from millrace.tools.cli import simulate
from millrace.tools.cli.main import main

SIZE = ["--stages", "4", "--micro-batches", "8"]


def run(*words, size=SIZE):
    result = CliRunner().invoke(main, ["simulate", *size, *words], env={"COLUMNS": "100"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    return result


def parts(result):
    """Time and share of each part, by name."""
    found = re.findall(r"^ ([^\d\n]+?) +([\d.e+-]+) +([\d.]+)% *$", result.stdout, re.MULTILINE)
    return {name: (float(time), float(share)) for name, time, share in found}


COSTS = ["--transfer", "0.25", "--dispatch", "0.1", "--update", "0.5", "--gradient-sum", "1.26"]


def test_the_parts_of_an_update_are_its_whole_time():
    found = parts(run(*COSTS))
    assert {name: time for name, (time, _) in found.items()} == {
        "work": 24,
        "bubble": 9,
        "transfers": 4,
        "dispatch": 0.1,
        "gradient sum": 1.26,
        "update": 0.5,
        "total": pytest.approx(24 + 9 + 4 + 0.1 + 1.26 + 0.5),
    }
    assert sum(share for name, (_, share) in found.items() if name != "total") == pytest.approx(
        100, abs=0.3
    )


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble", "v_half"])
def test_a_summary_has_the_numbers_of_the_drawing(schedule):
    drawn = run("--schedule", schedule, *COSTS)
    summary = run("--schedule", schedule, "--summary", *COSTS)
    assert parts(summary) == parts(drawn)
    for line in ("end ", "bubble "):
        assert [each for each in summary.stdout.splitlines() if each.startswith(line)] == [
            each for each in drawn.stdout.splitlines() if each.startswith(line)
        ]
    assert "stage 0 |" not in summary.stdout


def test_a_summary_of_ones_own_schedule():
    words = ["--schedule", "0F0 0F1 0B0 0B1 \n 1F0 1B0 1F1 1B1", "--summary"]
    result = run(*words, size=["--stages", "2", "--micro-batches", "2"])
    assert "activation sets at the peak: 2 on group 0, 1 on group 1" in result.stdout
    assert "group 0 |" not in result.stdout


def test_more_than_can_be_drawn_becomes_a_summary(monkeypatch):
    monkeypatch.setattr(simulate, "_MAX_DRAWN", 1000)
    assert "stage 0 |" in run(size=["--stages", "10", "--micro-batches", "100"]).stdout
    result = run(size=["--stages", "10", "--micro-batches", "101"])
    assert "bubble  8.2%   (textbook, with free transfers: 8.2%)" in result.stdout
    assert "activation sets at the peak: 10 on group 0, 1 on group 9" in result.stdout
    assert "stage 0 |" not in result.stdout


def test_progress_is_shown_on_a_terminal_after_a_second(monkeypatch):
    monkeypatch.setattr(progress, "SLOW_SECONDS", 0.0)
    words = ["simulate", "--stages", "8", "--micro-batches", "2000", "--summary"]
    environment = {"COLUMNS": "100", "FORCE_COLOR": "1"}
    assert "simulating" in CliRunner().invoke(main, words, env=environment).stderr
    monkeypatch.setattr(progress, "SLOW_SECONDS", 1000.0)
    assert CliRunner().invoke(main, words, env=environment).stderr == ""


def test_halves_of_a_backward():
    halves = ["--backward-input", "1.5", "--backward-weight", "0.5"]
    found = parts(run("--schedule", "zero_bubble", *halves))
    assert found["work"][0] == 24
    assert found["total"][0] > parts(run("--schedule", "zero_bubble"))["total"][0]
    assert parts(run(*halves)) == parts(run())  # the whole is their sum


def span(stage, kind, m, start, end):
    return Span(stage, kind, m, stage, start, end)


def trace(update, slow=1.0, schedule="1f1b"):
    """Two stages and two micro-batches; F 1 s and 2 s, B 3 s and 4 s, transfers 0.5 s."""
    times = [
        span(0, "F", 0, 0.0, 1.0 * slow),
        span(0, "F", 1, 1.0 * slow, 2.0 * slow),
        span(1, "F", 0, 1.0 * slow + 0.5, 3.0 * slow + 0.5),
        span(1, "B", 0, 3.0 * slow + 0.5, 7.0 * slow + 0.5),
        span(0, "B", 0, 7.0 * slow + 1.0, 10.0 * slow + 1.0),
        span(1, "F", 1, 7.0 * slow + 0.5, 9.0 * slow + 0.5),
        span(1, "B", 1, 9.0 * slow + 0.5, 13.0 * slow + 0.5),
        span(0, "B", 1, 13.0 * slow + 1.0, 16.0 * slow + 1.0),
    ]
    spans = sorted(times, key=lambda each: each.start)
    update_of_0 = ActivitySpan("group 0", "update", 16.0 * slow + 1.0, 16.0 * slow + 1.25)
    return ExecutionTrace(
        model="m",
        mode="train",
        loop=0,
        epoch=1,
        update=update,
        began=100.0 * update,
        num_groups=2,
        schedule=schedule,
        spans=tuple(spans),
        activities=(update_of_0,),
    )


@pytest.fixture
def measured(tmp_path):
    RunDirectory(tmp_path).add(trace(0, slow=5.0), trace(1), trace(2))
    return tmp_path


def test_the_costs_of_a_run_are_medians_and_its_sizes_are_the_defaults(measured):
    result = run("--costs", str(measured), size=[])
    assert result.stdout.startswith(
        "1f1b: 2 stages, 2 micro-batches\n"
        "seconds; costs of each of its 2 stages, medians of 3 updates\n"
    )
    found = parts(result)
    # F0 on stage 0, F and B twice on stage 1, and B1 on stage 0; both groups have 10 s on average.
    assert found["total"][0] == pytest.approx(1 + 2 * 6 + 3 + 2 * 0.5 + 0.25)
    assert found["work"][0] == pytest.approx((2 * 4 + 2 * 6) / 2)
    assert found["unequal stages"][0] == pytest.approx(2)
    assert found["update"][0] == 0.25


def test_other_stages_are_as_the_mean_of_the_measured_ones(measured):
    result = run("--costs", str(measured), size=["--stages", "8"])
    assert "costs of the mean of its 2 stages" in result.stdout
    assert parts(result)["work"][0] == pytest.approx(2 * (1.5 + 3.5))


def test_given_costs_replace_those_of_the_run(measured):
    words = ["--forward", "1", "--backward", "2", "--transfer", "0", "--update", "0"]
    result = run("--costs", str(measured), *words)
    assert parts(result) == parts(run())


def test_a_split_backward_of_a_run_without_one_takes_half_each(measured):
    result = run("--costs", str(measured), "--schedule", "zero_bubble", size=[])
    assert parts(result)["work"][0] == pytest.approx(10)


def test_a_run_with_a_split_backward_has_the_whole_one(tmp_path):
    spans = [span(0, kind, 0, k, k + 1.0) for k, kind in enumerate("FIW")]
    fields = {"model": "m", "mode": "train", "loop": 0, "epoch": 1, "update": 0, "began": 0.0}
    one = ExecutionTrace(**fields, num_groups=1, schedule="zero_bubble", spans=tuple(spans))
    RunDirectory(tmp_path).add(one)
    result = run("--costs", str(tmp_path), "--schedule", "1f1b", size=[])
    assert parts(result)["work"][0] == 3


def test_the_device_groups_of_a_looped_run(tmp_path):
    looped = trace(0, schedule="looped")
    RunDirectory(tmp_path).add(looped)
    assert "looped: 4 stages" in run("--costs", str(tmp_path), size=["--stages", "4"]).stdout


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([], "has no records of a run"),
        ([trace(0, schedule="own")], "schedule ('own') is not in its records. Set --schedule to"),
        (
            [ExecutionTrace(model="m", mode="test", loop=0, epoch=1, update=0, began=0.0,
                            num_groups=1, spans=(span(0, "F", 0, 0.0, 1.0),))],
            "has no measured tasks. Set Strategy(report_dir=...)",
        ),
        (
            [ExecutionTrace(model="m", mode="train", loop=0, epoch=1, update=0, began=0.0,
                            num_groups=2, spans=(span(1, "F", 0, 0.0, 1.0),))],
            "has no measured tasks of stage 0 of 2. Give the directory with the records of all",
        ),
    ],
)  # fmt: skip
def test_a_run_without_costs_is_refused(tmp_path, traces, message):
    RunDirectory(tmp_path).add(*traces)
    result = run("--costs", str(tmp_path), size=[])
    assert result.exit_code == 2
    assert message in result.stderr
