"""What a notebook, a prompt and `print` show of records: readable, and never without bounds."""

import dataclasses
import pathlib
import re
import types
from html.parser import HTMLParser

import pytest
from rich.console import Console

from millrace.base.records.compilation import CompileRecord, Origin
from millrace.base.records.compile_table import CompileRecords
from millrace.base.records.loops import EpochRecord, ExecutionSample, LoopRecord
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.memory_report import DeviceMemory, MemoryReport, StageMemory
from millrace.base.records.program_memory import MemoryArea, MemoryPeak, ProgramMemory
from millrace.base.records.statistics import FeedStatistics, PipelineStatistics, RunStatistics
from millrace.base.records.table_text import RecordRows, TableRecord
from millrace.base.records.timeline import PASS_STYLES, Span, Timeline
from millrace.base.records.trace import ExecutionTrace
from millrace.base.records.training_plan import Alternative, PlanRecord, UpdatePlan
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule
from millrace.tools.planning.training_plan import TrainingPlan
from millrace.tools.reports.limits import limits
from millrace.tools.reports.summary import Run

pytestmark = pytest.mark.quick

HOSTILE = "<script>alert(1)</script>[bold]&"
BUFFERS = tuple(LiveBuffer(f"t{k}", 9000 - k, f"layer_{k}", "dot") for k in range(300))
FIRST = CompileRecord(
    model="mlp", program="train_run", batch="float32[32,28]", capacity=32, unrolled=None,
    trace_seconds=0.25, lower_seconds=0.125, compile_seconds=1.5, temporary_bytes=1000,
    peak_bytes=2_500_000, cause="the first program of this name",
)  # fmt: skip
AGAIN = dataclasses.replace(FIRST, remedy="Set drop_remainder=True.", is_recompilation=True)
SWITCH = dataclasses.replace(FIRST, origin=Origin.SWITCH, count=3)
STATISTICS = RunStatistics(
    executions=24, dispatches=48, compilations=2, compile_seconds=5.0,
    infeed=FeedStatistics(24, 2400, 3_200_000, 2.0, 0.5, 2), pipeline=PipelineStatistics(),
    cache_hits=1, loop_seconds=10.0, loop_compile_seconds=4.0,
)  # fmt: skip
MEMORY = ProgramMemory(
    model="net", program="train_run", requirement=4000, point=4, alive=BUFFERS,
    areas=(
        MemoryArea("parameters", (1000,) * 5),
        MemoryArea("activations", (0, 500, 1000, 1500, 2000)),
    ),
)  # fmt: skip
TRACE = ExecutionTrace(
    model="m", mode="train", loop=0, epoch=1, update=4, began=0.0, num_groups=2,
    spans=(
        Span(0, "F", 0, 0, 0.0, 0.2), Span(0, "B", 0, 0, 0.5, 1.0),
        Span(1, "F", 0, 1, 0.2, 0.3), Span(1, "B", 0, 1, 0.3, 0.51),
    ),
)  # fmt: skip
STAGE = StageMemory(
    stage=0, parameters=1000, optimizer_state=0, accumulators=0, temporaries=2_000_000,
    in_flight=0, batches=0, other=0,
)  # fmt: skip
DEVICE = DeviceMemory(("cpu:0",), "train_run", (STAGE,), BUFFERS, curve=tuple(range(4000)))
REPORT = MemoryReport(HOSTILE, "float32[4,2]", (DEVICE,))
UPDATE = UpdatePlan(
    batch_size=128, steps_per_execution=2, replicas=1, stages=2, schedule="zero_bubble",
    cut=tuple((f"layer_{k}", 0, k // 500) for k in range(1000)),
)  # fmt: skip
PLAN = TrainingPlan(
    model="mlp",
    batch="float32[256,32]",
    devices=tuple(f"cpu:{k}" for k in range(64)),
    memory=10**9,
    is_measured=False,
    compilations=4,
    alternatives=tuple(
        Alternative(
            update=UPDATE, seconds=1.0 + k, peaks=(("cpu:0", 1_200_000),), bubble=0.17,
            flops=5e7, moved_bytes=0.0, fits=True,
        )
        for k in range(9)
    ),
)  # fmt: skip
LOOP = LoopRecord(
    number=0, model="mlp", mode="train", began=1e9, ended=1e9 + 100, outcome="finished",
    options={f"option_{k}": "x" * 50 for k in range(40)}, steps=1000, executions=1000, epochs=2,
)  # fmt: skip
SAMPLES = RecordRows(
    ExecutionSample(
        loop=0, mode="train", epoch=1, began=1e9 + k / 10, seconds=0.1, executions=1, steps=7000 + k
    )
    for k in range(1000)
)
TIMELINE = Timeline(
    tuple(Span(0, "FB"[k % 2], k, k % 200, k / 9, k / 9 + 5.0) for k in range(20_000)), 200
)
RUN = Run(
    path=pathlib.Path("runs/7"),
    loops=RecordRows([LOOP]),
    epochs=RecordRows(EpochRecord(loop=0, epoch=k, ended=1e9, logs={"loss": 0.5}) for k in (1, 2)),
    executions=SAMPLES,
    compilations=CompileRecords([FIRST, SWITCH, AGAIN]),
    traces=RecordRows([TRACE]),
    memory_profiles=RecordRows([MEMORY]),
)
SCHEDULE = make_schedule("1f1b", 4, 8, (0, 1, 2, 3))
SHOWN = {
    "run": (
        RUN,
        ["runs/7", "1,000 steps in 1,000 executions", "bubble 49.5%", "3.00 KB"],
    ),
    "statistics": (STATISTICS, ["10.00 s", "40.0%", "2 compiled, 1 from the cache"]),
    "plan": (PLAN, ["1.20 MB", "17%", "pipeline_schedule='zero_bubble'", "64 devices"]),
    "memory report": (REPORT, ["Needs 2.00 MB", HOSTILE, "layer_0", "9.00 KB"]),
    "compile log": (RUN.compilations, ["train_run", "1.88 s", "Set drop_remainder=True", "x3"]),
    "schedule": (SCHEDULE, ["stage 0", "F0", "B7---"]),
    "timeline": (simulate(SCHEDULE, UNIT_COST), ["stage 3", "F7", "bubble 27.3% of 33"]),
    "trace": (RUN.trace, ["m: update 4 of fit 0", "bubble 49.5% of 1000 ms", "B0---"]),
    "memory": (RUN.memory["train"], ["peak 3.00 KB at point 5 of 5", "a activations 2.00 KB"]),
    "loops": (RUN.loops, ["mlp", "1,000", "<40>"]),
    "loop": (LOOP, ["outcome", "finished", "1,000"]),
    "epochs": (RUN.epochs, ["loss 0.5"]),
    "executions": (SAMPLES, ["7,000", "7,999", "..."]),
    "peak": (MemoryPeak(0, 123_456, BUFFERS), ["123,456", "<300>"]),
    "device": (DEVICE, ["cpu:0", "<4,000>"]),
    "alternative": (PLAN.chosen, ["1200000", "0.17"]),
    "limits": (limits(RUN), ["wall_seconds", "100"]),
    "200 device groups": (TIMELINE, ["group 0", "... and 176 more"]),
    "a large schedule": (make_schedule("gpipe", 64, 64, tuple(range(64))), ["8,192 tasks"]),
    "no loops": (RecordRows(()), ["no records"]),
}
CASES = pytest.mark.parametrize(("record", "parts"), SHOWN.values(), ids=SHOWN)


class Words(HTMLParser):
    """The text of HTML, and its tags with their styles."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.open, self.styles = "", set(), [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.styles += "".join(f"{value};" for name, value in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def bundle(record):
    """What IPython asks for, of text and of HTML."""
    texts = []
    record._repr_pretty_(types.SimpleNamespace(text=texts.append), False)
    return {"text/plain": "".join(texts), "text/html": record._repr_html_()}


@CASES
def test_a_notebook_gets_text_and_html_of_bounded_size(record, parts):
    shown = bundle(record)
    assert shown["text/plain"] == str(record)
    html = Words(shown["text/html"])
    for text in (shown["text/plain"], html.text):
        words = " ".join(text.split())
        assert [part for part in parts if part not in words] == []
        assert not re.search(r"\b(Span|LiveBuffer|Alternative|ExecutionSample)\(", text)
    assert html.tags <= {"div", "pre", "table", "tr", "th", "td", "span"}
    assert all("monospace" in each for each in re.findall("<pre[^>]*>", shown["text/html"]))
    assert len(shown["text/html"]) < 60_000
    assert len(shown["text/plain"]) < 12_000


@CASES
def test_at_a_prompt_it_is_a_line(record, parts):
    assert len(repr(record)) < 600
    assert "\n" not in repr(record)


@CASES
def test_a_dark_notebook_stays_dark(record, parts):
    """No colours but those of tasks, each of which has its own ink, and of a verdict."""
    styles = Words(bundle(record)["text/html"]).styles
    sizes = [int(size) for size in re.findall(r"font(?:-size)?:(\d+)px", styles)]
    assert min(sizes) >= 12
    papers = set(re.findall(r"background-color: (#\w+)", styles))
    assert papers <= {style.color for style in PASS_STYLES.values()}


def test_costs_and_layers_are_tables():
    for name in ("run", "statistics", "plan", "memory report", "compile log", "loops", "limits"):
        html = bundle(SHOWN[name][0])["text/html"]
        assert html.count("<table") == html.count("</table>") >= 1
    row = re.search(r"<tr>(?:(?!</tr>).)*1\.20 MB.*?</tr>", bundle(PLAN)["text/html"], re.DOTALL)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row.group(), re.DOTALL)
    assert cells[:7] == ["1", "1.00", "1.20 MB", "17%", "50 M", "0 B", "1 x 2"]
    assert "steps_per_execution=2)\nmodel.fit(..., batch_size=128)" in cells[7]


def test_a_task_has_the_colour_of_its_pass():
    html = bundle(simulate(SCHEDULE, UNIT_COST))["text/html"]
    forward = re.findall(rf"background-color: {PASS_STYLES['F'].color}\">([^<]*)<", html)
    assert len(re.findall(r"F\d", "".join(forward))) == 32
    assert set("".join(forward)) <= set("F-01234567")


def test_show_prints_the_same(capsys):
    STATISTICS.show()
    assert capsys.readouterr().out == f"{STATISTICS}\n"
    STATISTICS.show(Console(force_terminal=True, highlight=False))
    assert "2 compiled, 1 from the cache" in capsys.readouterr().out


def test_rows_are_tuples():
    assert RUN.loops == (LOOP,)
    assert RUN.executions[-1].steps == 7999
    assert hash(SCHEDULE) == hash(tuple(SCHEDULE))
    assert isinstance(PLAN, PlanRecord)


def test_no_record_that_shows_itself_has_the_repr_of_dataclasses():
    def kinds(kind):
        return {kind}.union(*map(kinds, kind.__subclasses__()))

    for kind in kinds(TableRecord):
        assert not hasattr(vars(kind).get("__repr__"), "__wrapped__"), kind
