"""The page of a run, read as HTML and JSON: without a browser."""

import base64
import dataclasses
import email.message
import gc
import gzip
import html.parser
import importlib.metadata
import json
import math
import pathlib
import re

import numpy as np
import pytest
from synthetic import memory, synthetic_run, trace

import millrace
from millrace.base.records.loops import EpochRecord, ExecutionSample, FeedSample, LoopRecord
from millrace.base.records.memory import LiveBuffer
from millrace.base.records.operations import OperationGroup, ProgramOperations
from millrace.base.records.program_memory import MemoryArea, ProgramMemory
from millrace.base.records.run import RunRecords
from millrace.base.records.tensors import STATISTICS, Tensor, TensorSeries
from millrace.base.records.timeline import Span
from millrace.base.records.trace import ActivitySpan, ExecutionTrace
from millrace.errors import OptionError
from millrace.tools.reports.assets import ASSETS, LIBRARY, SCRIPTS, STYLES, read, script
from millrace.tools.reports.bubble import idle_slots
from millrace.tools.reports.page import page, write_page
from millrace.tools.reports.page_data import docs_address
from millrace.tools.reports.thinning import kept_points
from millrace.tools.reports.twin import simulated_twin

NOTHING = RunRecords(path=pathlib.Path("runs/empty"))
VOID = {"meta", "br", "link", "img", "input"}
TYPES = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "f64": "<f8"}
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<!--<script>",
    "]]>",
    "\"quoted\" 'and' `so`",
    "{{script}} {{data}}",
    "\u202eright to left\u202c \u05d0",
    "\u2028\u2029\u0000\ud800",
    "very long " * 10_000,
    "",
]


class Reader(html.parser.HTMLParser):
    """Reads a page: its elements, their attributes, and the text in each script."""

    def __init__(self):
        super().__init__()
        self.open, self.elements, self.scripts, self.title = [], [], [], ""

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append([dict(attributes), ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1][1] += data
        if self.open and self.open[-1] == "title":
            self.title += data


class Read:
    """A page as its script sees it."""

    def __init__(self, text):
        self.reader = Reader()
        self.reader.feed(text)
        self.reader.close()
        assert self.reader.open == []
        by_id = {attributes.get("id"): text for attributes, text in self.reader.scripts}
        assert list(by_id) == ["data", "columns", None]
        self.data = json.loads(by_id["data"])
        self.bytes = gzip.decompress(base64.b64decode(by_id["columns"]))
        self.run = self.data["runs"][0]

    def column(self, reference):
        raw = self.bytes[reference["at"] : reference["at"] + reference["bytes"]]
        if reference["type"] == "json":
            return json.loads(raw)
        assert reference["at"] % 8 == 0
        return np.frombuffer(raw, TYPES[reference["type"]])

    def times(self, of, spans):
        starts = of["first"] + np.cumsum(self.column(spans["gap"])) * of["tick"]
        return starts, starts + self.column(spans["length"]) * of["tick"]


@pytest.fixture(scope="module")
def run():
    return synthetic_run()


def test_a_page_is_one_file_that_asks_for_nothing(run):
    text = page([run])
    read = Read(text)
    for tag, attributes in read.reader.elements:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert not {"src", "href", "action", "srcset"} & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|WebSocket|importScripts", text)
    policy = next(a["content"] for _, a in read.reader.elements if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_script_builds_no_markup_from_text():
    for name in SCRIPTS:
        source = (ASSETS / name).read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", source)
        assert "</script" not in source.lower()
        assert "<!--" not in source
        assert len(source.splitlines()) <= 400
    assert "</script" not in (ASSETS / LIBRARY).read_text(encoding="utf-8").lower()


def test_the_code_that_it_prints_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = re.findall(r"millrace\.[A-Z\w.]+\([^()]*\)", script())
    assert len(calls) == 2
    for call in calls:
        eval(call, {"millrace": millrace})


def test_all_files_are_used_and_the_licence_of_the_library_is_there():
    used = {*SCRIPTS, *STYLES, LIBRARY, "uplot.LICENSE", "page.html"}
    assert {each.name for each in ASSETS.iterdir()} == used
    assert "MIT" in read("uplot.LICENSE")
    assert "Leon Sorokin" in page([NOTHING])
    version = re.search(r"uPlot \(v([\d.]+)\)", script())
    assert version
    assert version[1] == "1.6.32"


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_of_users_are_data(name):
    run = synthetic_run(layers=3, stages=1, updates=1, epochs=1, prefix=name)
    loops = tuple(dataclasses.replace(each, model=name, error=name) for each in run.loops)
    path = pathlib.Path(name.replace("\0", "")[:60] or "run")
    run = dataclasses.replace(run, loops=loops, path=path, damaged={name: 1})
    text = page([run])
    text.encode()  # a lone surrogate cannot be written
    read = Read(text)
    assert len(text) < 900_000
    if len(name) < 100:
        assert read.run["loops"][0]["model"] == name
        owners = {group[0] for group in read.run["operations"][0]["groups"]}
        assert f"{name}0" in owners
        assert read.run["damaged"] == {name: 1}
    assert read.reader.title.startswith(path.name.encode(errors="replace").decode()[:40])


def test_tasks_come_back(run):
    read = Read(page([run]))
    assert read.run["traces"]["in_all"] == len(run.traces)
    for written, recorded in zip(read.run["traces"]["traces"], run.traces, strict=True):
        spans = sorted(recorded.spans, key=lambda span: span.start)
        tasks = written["tasks"]
        starts, ends = read.times(written, tasks)
        assert starts == pytest.approx([span.start for span in spans], abs=2e-9)
        assert ends == pytest.approx([span.end for span in spans], abs=2e-9)
        assert read.column(tasks["micro_batch"]).tolist() == [s.micro_batch for s in spans]
        assert [tasks["kinds"][k] for k in read.column(tasks["kind"])] == [s.kind for s in spans]
        assert written["bubble"] == pytest.approx(recorded.timeline.bubble)
        assert {each["row"] for each in written["activities"]} == {
            each.row for each in recorded.activities
        }


def test_the_twin_and_the_reasons_of_idle_time_come_back(run):
    read = Read(page([run]))
    written, recorded = read.run["traces"]["traces"][1], run.traces[1]
    twin = simulated_twin(recorded)
    starts, _ = read.times(written, written["twin"])
    assert starts == pytest.approx([span.start for span in twin.spans], abs=2e-9)
    assert written["twin"]["end"] == pytest.approx(twin.end)
    assert written["twin"]["bubble"] == pytest.approx(twin.bubble)
    slots = sorted(idle_slots(recorded.timeline), key=lambda slot: slot.start)
    idle = written["idle"]
    starts, ends = read.times(written, idle)
    assert (ends - starts).sum() == pytest.approx(sum(recorded.timeline.idle))
    texts = read.column(idle["reasons"])
    reasons = [
        texts[reason].replace("#", str(micro_batch))
        for reason, micro_batch in zip(
            read.column(idle["reason"]), read.column(idle["micro_batch"]), strict=True
        )
    ]
    assert reasons == [slot.reason for slot in slots]
    assert len(texts) < len(set(reasons)) / 3


def test_memory_comes_back(run):
    read = Read(page([run]))
    for written, recorded in zip(read.run["memory"]["profiles"], run.memory_profiles, strict=True):
        for area, of in zip(written["areas"], recorded.areas, strict=True):
            assert read.column(area["curve"]).tolist() == list(of.curve)
        assert written["peak"] == recorded.peak.bytes
        assert [each[:2] for each in written["layers"]] == [
            [each.layer, each.nbytes] for each in recorded.peak.layers
        ]


def test_statistics_and_logs_come_back(run):
    read = Read(page([run]))
    first = read.run["tensors"]["tensors"][0]
    parts = [each for each in run.tensors if each.tensor == run.tensors[0].tensor]
    assert read.column(first["steps"]).tolist() == [s for part in parts for s in part.steps]
    for k in range(len(STATISTICS)):
        expected = [row[k] for part in parts for row in part.values]
        assert read.column(first["values"][k]).tolist() == expected
    logs = {name: read.column(values) for name, values in read.run["epochs"][0]["logs"]}
    assert logs["loss"].tolist() == [each.logs["loss"] for each in run.epochs]
    feed = read.run["feeds"][0]
    assert read.column(feed["wait_seconds"]).sum() == pytest.approx(
        sum(each.wait_seconds for each in run.feeds)
    )


def test_no_records_at_all():
    read = Read(page([NOTHING]))
    assert read.run["loops"] == []
    assert read.run["traces"] == {"traces": [], "typical": 0, "in_all": 0}


def test_each_kind_of_records_alone(run):
    for field in dataclasses.fields(RunRecords):
        if field.name not in ("path", "damaged"):
            part = RunRecords(path=run.path, **{field.name: getattr(run, field.name)})
            Read(page([part]))


def test_two_runs_side_by_side(run):
    read = Read(page([run, synthetic_run("other", seed=1)]))
    assert [each["name"] for each in read.data["runs"]] == ["run", "other"]
    assert read.reader.title.startswith("run and other")


@pytest.mark.parametrize("number", [0, 3])
def test_one_run_or_two(run, number):
    with pytest.raises(OptionError, match=f"Received: {number}. Give a list"):
        page([run] * number)


def test_a_run_in_no_list(run):
    with pytest.raises(OptionError, match=r"a run that is in no list.*page\(\[run\]\)"):
        page(run)


ODD = (math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1e300)


def test_numbers_of_all_sizes():
    spans = tuple(Span(0, "F", k, 0, value, 2.0) for k, value in enumerate(ODD))
    values = tuple((value,) * 8 for value in ODD)
    logs = {f"log {k}": value for k, value in enumerate(ODD)}
    run = dataclasses.replace(
        NOTHING,
        loops=(LoopRecord(number=0, model="m", mode="train", began=math.nan, ended=math.inf),),
        epochs=(EpochRecord(loop=0, epoch=1, ended=math.nan, logs=logs),),
        executions=tuple(
            ExecutionSample(
                loop=0, mode="train", epoch=0, began=v, seconds=v, executions=1, steps=1
            )
            for v in ODD
        ),
        feeds=(
            FeedSample(
                loop=0,
                mode="train",
                epoch=1,
                time=math.nan,
                depth=0,
                limit=0,
                blocks=0,
                steps=0,
                bytes=2**70,
                prepare_seconds=math.inf,
                wait_seconds=math.nan,
            ),
        ),
        operations=(
            ProgramOperations(
                model="m",
                program="p",
                groups=tuple(OperationGroup("a", "layer", "", 1, v, v, v) for v in ODD),
            ),
        ),
        memory_profiles=(
            ProgramMemory(
                model="m",
                program="p",
                requirement=2**62,
                areas=(MemoryArea("other", (0, 2**60)), MemoryArea("batches", (1,))),
                point=77,
                alive=(LiveBuffer("t", 2**60, "", ""),),
            ),
            ProgramMemory(model="m", program="q", requirement=0, areas=(), point=0, alive=()),
        ),
        tensors=(
            TensorSeries(model="m", tensor=Tensor("loss", ""), epoch=1, steps=(0,), values=()),
            TensorSeries(
                model="m", tensor=Tensor("a", "b"), epoch=1, steps=tuple(range(7)), values=values
            ),
        ),
        traces=(
            dataclasses.replace(trace(1, 1, 0, NoLuck()), spans=spans, began=math.nan),
            dataclasses.replace(trace(1, 1, 0, NoLuck()), spans=(), activities=(), num_groups=0),
            dataclasses.replace(
                trace(1, 1, 0, NoLuck()), spans=(Span(-1, "?", 10**6, 9, 0.0, 0.0),)
            ),
        ),
    )
    read = Read(page([run]))
    first = read.run["traces"]["traces"][0]
    assert first["left_out"] == 4  # without a time, or with the end before the start
    assert first["tasks"]["gap"]["count"] == 3
    back = read.column(read.run["tensors"]["tensors"][1]["values"][0])
    assert np.array_equal(back, np.array(ODD), equal_nan=True)
    assert [read.column(v)[0] for _, v in read.run["epochs"][0]["logs"]][1:] == list(ODD)[1:]


class NoLuck:
    """Random numbers that are not."""

    def uniform(self, low, high):
        return low


@pytest.mark.slow
def test_much_of_everything_stays_small():
    spans = tuple(Span(k % 8, "F", k, k % 8, k * 1.1e-3, k * 1.1e-3 + 1e-3) for k in range(300_000))
    luck = NoLuck()
    luck.randrange = lambda *_: 7
    big = ExecutionTrace(
        model="m", mode="train", loop=0, epoch=1, update=0, began=0.0, num_groups=8, spans=spans,
        activities=(ActivitySpan("host", "x", 0, 1),),
    )  # fmt: skip
    profile = memory([f"layer_{k}" for k in range(3000)], 0, 1, False, luck)
    run = dataclasses.replace(NOTHING, traces=(big,), memory_profiles=(profile,) * 50)
    text = page([run])
    assert len(text) < 5_000_000
    read = Read(text)
    assert read.run["traces"]["traces"][0]["left_out"] == 170_000
    written = read.run["memory"]["profiles"][0]
    points = read.column(written["points"])
    assert len(points) <= 2002
    assert profile.point in points
    curve = sum(read.column(area["curve"]) for area in written["areas"])
    assert curve.max() == max(profile.curve)


def test_points_that_stay():
    curve = np.sin(np.arange(10_000) / 50)
    curve[[1234, 8765]] = 9.0, -9.0
    kept = kept_points(curve, 200, keep=[17])
    assert len(kept) <= 203
    assert {0, 17, 1234, 8765, 9999} <= set(kept.tolist())
    assert kept_points(curve[:200], 200).tolist() == list(range(200))
    assert kept_points(np.array([]), 200).tolist() == []


def test_the_same_records_give_the_same_page(run):
    first, second = (re.sub(r'"written":[\d.]+', "", page([run])) for _ in range(2))
    assert first == second


def test_a_page_is_replaced_in_one_go(tmp_path, run):
    path = write_page([NOTHING], tmp_path / "deep" / "report.html")
    before = path.read_text(encoding="utf-8")
    assert write_page([run], path) == path
    assert path.read_text(encoding="utf-8") != before
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(OptionError, match="Give the path of a file"):
            write_page([NOTHING], path)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_collection_of_garbage_goes_on_afterwards(run):
    assert gc.isenabled()
    page([NOTHING])
    assert gc.isenabled()
    gc.disable()
    try:
        page([NOTHING])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_each_tab_links_to_a_part_of_the_documentation():
    """Once the package says where that is; of a package that does not, nothing is linked."""
    docs = pathlib.Path(__file__).parents[2] / "docs"
    links = re.findall(r'^  \["\w+", "\w+", \w+, "([^"]+)"\]', script(), re.MULTILINE)
    assert len(links) == 8
    for name, _, part in (link.partition("#") for link in links):
        titles = re.findall(r"^#+ (.*)$", (docs / name).read_text(), re.MULTILINE)
        assert not part or part in {title.lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("urls", "address"),
    [
        (["Issues, https://a.test/x/issues", "Repository, https://a.test/x"], "https://a.test/x"),
        (None, ""),
    ],
)
def test_the_address_of_the_documentation_is_that_of_the_package(monkeypatch, urls, address):
    metadata = email.message.Message()
    for url in urls or ():
        metadata["Project-URL"] = url
    monkeypatch.setattr(importlib.metadata, "metadata", lambda package: metadata)
    assert docs_address.__wrapped__() == (address and f"{address}/blob/main/docs/")


def test_the_commands_of_empty_tabs_work():
    found = re.findall(r"millrace\.callbacks\.\w+\(.*?\)(?=\])", script())
    assert len(found) == 1
    assert isinstance(eval(found[0]), millrace.callbacks.TensorStatistics)
