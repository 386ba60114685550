"""The page of a run in Chromium: every tab, pointer and keys, and what it must not do."""

import csv
import dataclasses
import os
import pathlib
import re
import socket
import time

import pytest
from page_browser import CHROMIUM, DRIVER, PageBrowser
from synthetic import synthetic_run

from millrace.base.records.loops import ExecutionSample, LoopRecord, ProcessRecord
from millrace.base.records.run import RunRecords
from millrace.tools.reports import assets, page, page_data
from millrace.tools.reports.bubble import idle_slots
from millrace.tools.reports.page import write_page

pytest.importorskip("selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are absent"),
]
TABS = ["summary", "memory", "trace", "operations", "compilation", "feeds", "tensors", "compare"]
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "\"'`&amp;<!--",
    "\u202e\u2067right to left\u2028 \u0000\ud800",
    "very long " * 1000,
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = PageBrowser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def run():
    return synthetic_run()


@pytest.fixture(scope="module")
def path(tmp_path_factory, run):
    return write_page([run], tmp_path_factory.mktemp("page") / "report.html")


def test_every_tab_opens_without_an_error_or_a_request(browser, path):
    pictures = {}
    browser.open(path)
    for tab in TABS:
        browser.go(tab)
        assert browser.run("return document.getElementById('panel').innerText.length") > 100
        assert browser.run("return location.hash") == f"#{tab}"
        pictures[tab] = browser.screenshot()
    assert browser.console() == []
    assert browser.requests() == [f"file://{path}#"] or browser.requests() == []
    colors = {tab: browser.colors(png) for tab, png in pictures.items()}
    assert min(colors.values()) > 30, colors
    assert colors["trace"] > 60, colors


def test_the_address_names_the_tab(browser, path):
    browser.open(path, "feeds")
    assert browser.run("return document.getElementById('panel').dataset.tab") == "feeds"
    browser.run("location.hash = '#tensors'")
    browser.wait("return document.getElementById('panel').dataset.tab === 'tensors'")
    browser.open(path, "no/such<tab>")
    assert browser.run("return document.getElementById('panel').dataset.tab") == "summary"


@pytest.mark.parametrize("outcome", ["running", "finished"])
def test_the_page_of_a_run_that_goes_on_loads_itself(browser, tmp_path, monkeypatch, outcome):
    """A loop of this process is still running, or the process has ended."""
    often = assets.script().replace("RELOAD_AFTER = 30000", "RELOAD_AFTER = 300")
    monkeypatch.setattr(page, "script", lambda: often)
    began = time.time() + 60  # this process is young
    process = ProcessRecord(
        process=0, pid=os.getpid(), host=socket.gethostname(), cores=1, platform="cpu",
        devices=(), began=began, ended=began if outcome == "finished" else 0.0,
    )  # fmt: skip
    loop = LoopRecord(number=0, model="mlp", mode="train", began=began, outcome=outcome)

    def write(epochs):
        records = RunRecords(
            path=tmp_path, processes=(process,), loops=(dataclasses.replace(loop, epochs=epochs),)
        )
        return write_page([records], tmp_path / "report.html")

    browser.open(write(1), "feeds")
    write(2)
    data = "JSON.parse(document.getElementById('data').textContent)"
    shown = f"return {data}.runs[0].loops[0].epochs"
    if outcome == "finished":
        time.sleep(1)
        assert browser.run(shown) == 1
        return
    browser.wait(f"{shown} === 2")
    browser.wait("return document.documentElement.dataset.ready")
    assert browser.run("return location.hash") == "#feeds"


def test_a_point_of_the_memory_tells_its_bytes(browser, path, run):
    browser.open(path, "memory")
    left, top, width, height = browser.box(".u-over")
    browser.pointer(left + width / 2, top + height / 2)
    text = browser.text(".tooltip")
    point = int(text.split()[2])
    ran = [each for each in run.memory_profiles if not each.is_trial]
    shown = max(ran, key=lambda each: each.peak.bytes)
    assert abs(point - len(shown.curve) / 2) < 2
    layers = [each for each in shown.segments if each.first <= point]
    assert f"layer\n{layers[-1].layer}" in text
    for area in shown.areas:
        assert area.role in text
    activations = next(area for area in shown.areas if area.role == "activations").curve[point]
    assert f"activations\n{activations / 1e6:.3g}"[:15] in text, text


def test_a_task_tells_its_times(browser, path, run):
    browser.open(path, "trace")
    left, top, _, _ = browser.box(".gantt canvas")
    browser.pointer(left + 132 + 4, top + 26 + 5 + 12)
    assert "forward" in browser.text(".tooltip")
    first = next(span for span in run.trace.spans if span.group == 0)
    assert str(first) in browser.text(".tooltip")
    assert f"takes\n{first.duration * 1e6:.3g} µs" in browser.text(".tooltip")
    browser.pointer(left + 132 + 4, top + 26 + 5 + 12, "down", "up")
    assert str(first) in browser.text(".gantt-status")


def test_idle_time_tells_its_reason_and_the_twin_its_own_times(browser, path, run):
    browser.open(path, "trace")
    left, top, width, _ = browser.box(".gantt canvas")
    slots = [slot for slot in idle_slots(run.timeline) if slot.group == 0]
    longest = max(slots, key=lambda slot: slot.duration)
    start, end = browser.view()
    middle = ((longest.start + longest.end) / 2 - start) / (end - start)
    browser.pointer(left + 132 + middle * (width - 140), top + 26 + 5 + 12)
    assert longest.reason in browser.text(".tooltip")
    browser.pointer(left + 132 + 6, top + 26 + 5 + 24 + 1 + 6)
    assert "simulated" in browser.text(".tooltip")


def test_zoom_and_pan(browser, path):
    browser.open(path, "trace")
    left, top, width, _ = browser.box(".gantt canvas")
    whole = browser.view()
    middle = left + 132 + (width - 140) / 2
    browser.wheel(middle, top + 60, -300)
    zoomed = browser.view()
    assert zoomed[1] - zoomed[0] < (whole[1] - whole[0]) * 0.7
    assert zoomed[0] > whole[0]
    browser.drag(middle, top + 60, middle - 120, shift=True)
    assert browser.view()[0] > zoomed[0]
    assert browser.view()[1] - browser.view()[0] == pytest.approx(zoomed[1] - zoomed[0])
    browser.pointer(middle, top + 60, "down", "up")
    browser.run("document.querySelector('.gantt canvas').dispatchEvent(new MouseEvent('dblclick'))")
    browser.settle()
    assert browser.view() == whole
    browser.drag(middle, top + 60, middle + 100)
    assert browser.view()[1] - browser.view()[0] < (whole[1] - whole[0]) * 0.2
    for _ in range(60):
        browser.wheel(middle, top + 60, -400)
    start, end = browser.view()
    assert whole[0] <= start < end <= whole[1]
    assert browser.console() == []


def test_keys_do_what_the_pointer_does(browser, path, run):
    browser.open(path)
    browser.run("document.getElementById('tab-summary').focus()")
    browser.key("ARROW_RIGHT")
    assert browser.run("return location.hash") == "#memory"
    assert browser.run("return document.activeElement.id") == "tab-memory"
    browser.key("END")
    assert browser.run("return location.hash") == "#compare"
    browser.go("trace")
    browser.run("document.querySelector('.gantt canvas').focus()")
    whole = browser.view()
    browser.key("w")
    assert browser.view()[1] - browser.view()[0] < whole[1] - whole[0]
    browser.key("0")
    assert browser.view() == whole
    browser.key("ARROW_DOWN")
    first, second = [span for span in run.trace.spans if span.group == 0][:2]
    assert str(first) in browser.text(".gantt-status")
    browser.key("ARROW_RIGHT")
    assert str(second) in browser.text(".gantt-status")
    browser.go("memory")
    browser.run("document.querySelector('.curves').focus()")
    browser.key("END")
    assert "program point" in browser.text(".tooltip")


def test_a_table_is_sorted_and_filtered(browser, path):
    browser.open(path, "operations")
    rows = "return [...document.querySelectorAll('tbody tr')].map((row) => row.innerText)"
    browser.run("document.querySelector('th button').click()")
    owners = [re.sub(r"\d+", lambda n: n[0].zfill(3), row.split()[0]) for row in browser.run(rows)]
    assert owners == sorted(owners, key=str.lower)
    filtered = (
        "const box = document.querySelector('input[type=search]');"
        "box.value = arguments[0]; box.dispatchEvent(new Event('input'))"
    )
    browser.run(filtered, "SGD")
    assert [row.split()[0] for row in browser.run(rows)] == ["SGD"]
    browser.go("compilation")
    shown = browser.run(rows)
    batch = shown[0].partition(" · ")[2].split("\t")[0].split("\n")[0]
    assert "float32[" in batch
    browser.run(filtered, batch)
    assert 0 < len(browser.run(rows)) <= len(shown)
    browser.run(filtered, "no such batch")
    assert browser.run(rows) == []


def test_hostile_names_stay_text(browser, tmp_path):
    for name in HOSTILE:
        run = synthetic_run(layers=4, stages=2, updates=1, prefix=name)
        loops = [dataclasses.replace(each, model=name, error=name) for each in run.loops]
        made = [dataclasses.replace(each, program=name, cause=name) for each in run.compilations]
        run = dataclasses.replace(run, loops=tuple(loops), compilations=tuple(made))
        other = dataclasses.replace(run, path=pathlib.Path(name[:100].replace("\0", "")))
        browser.open(write_page([other, run], tmp_path / "hostile.html"))
        for tab in TABS:
            browser.go(tab)
        assert browser.run("return document.scripts.length") == 3
        assert browser.run("return document.images.length") == 0
        assert browser.console() == []
        browser.go("compilation")
        wide = browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
        assert wide, "a long name must not widen the page"
        if len(name) < 60 and "\0" not in name:
            browser.run("location.hash = '#2/operations'")
            browser.wait("return document.getElementById('panel').dataset.tab === 'operations'")
            assert f"{name}0" in browser.run("return document.body.textContent")


def test_no_records_and_few(browser, tmp_path, run):
    nothing = RunRecords(path=pathlib.Path("runs/empty"))
    browser.open(write_page([nothing], tmp_path / "empty.html"))
    for tab in TABS:
        browser.go(tab)
        assert browser.run("return document.querySelectorAll('.empty').length") > 0, tab
    names = [each.name for each in dataclasses.fields(RunRecords)]
    for name in set(names) - {"path", "damaged"}:
        part = RunRecords(path=run.path, **{name: getattr(run, name)})
        browser.open(write_page([part], tmp_path / "part.html"))
        for tab in TABS:
            browser.run(f"document.getElementById('tab-{tab}').click()")
        assert browser.console() == [], name


def test_two_runs_have_one_scale(browser, tmp_path, run):
    other = synthetic_run("other", seed=3, micro_batches=6, epochs=3)
    browser.open(write_page([run, other], tmp_path / "two.html"))
    assert browser.run("return document.getElementById('panel').dataset.tab") == "compare"
    views = browser.run(
        "return [...document.querySelectorAll('.gantt canvas')]"
        ".map((c) => [c.dataset.from, c.dataset.to].join())"
    )
    assert len(views) == 2
    assert views[0] == views[1]
    scales = browser.run(
        "return [...document.querySelectorAll('.pair .curves')].map((c) => c.plot.scales.y.max)"
    )
    assert len(scales) == 2
    assert scales[0] == scales[1]
    browser.open(tmp_path / "two.html", "2/summary")
    assert "other" in browser.text("h1")
    assert browser.console() == []


def test_it_is_dark_where_the_system_is(browser, path):
    browser.open(path, "memory")
    script = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    light = browser.run(script)
    browser.dark(True)
    try:
        browser.settle()
        assert max(browser.run(script)) < 60 < min(light)
        assert browser.console() == []
        assert browser.colors(browser.screenshot()) > 30
    finally:
        browser.dark(False)


def test_a_narrow_page_is_not_wider_than_its_frame(browser, path):
    for width in (400, 800):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            for tab in TABS:
                browser.open(path, tab)
                assert browser.run("return document.documentElement.scrollWidth") <= width, tab
                lists = "[...document.querySelectorAll('select')]"
                rights = browser.run(f"return {lists}.map((s) => s.getBoundingClientRect().right)")
                assert max(rights, default=0) <= width, tab
                chosen = "document.querySelector('[aria-selected=true]').getBoundingClientRect()"
                assert browser.run(f"return {chosen}.right") <= width, tab
        finally:
            browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_operations_begin_with_all_of_training(browser, path, run):
    browser.open(path, "operations")
    chosen = "return document.querySelector('select').selectedOptions[0].text"
    assert browser.run(chosen).startswith("all of train, one call of each of")
    latest = {each.program: each for each in run.operations if each.program.startswith("train")}
    bytes_in_all = sum(group.bytes for each in latest.values() for group in each.groups)
    assert f"bytes read and written\n{bytes_in_all / 1e6:.3g} MB" in browser.text("#panel")


def test_every_colour_of_a_trace_is_named(browser, path):
    browser.open(path, "trace")
    assert {"F forward", "B backward", "update", "host", "idle"} <= set(
        browser.text(".legend").split("\n")
    )


def test_charts_of_a_feed_begin_after_compiling(browser, path, tmp_path):
    sample = {"loop": 0, "mode": "train", "epoch": 1, "executions": 1, "steps": 8}
    times = ((100.0, 43.0, 42.0), (143.0, 0.5, 0.0), (143.5, 0.25, 0.0), (143.75, 0.5, 0.0))
    samples = tuple(
        ExecutionSample(**sample, began=began, seconds=seconds, compile_seconds=compiling)
        for began, seconds, compiling in times
    )
    run = RunRecords(path=tmp_path, executions=samples)
    browser.open(write_page([run], tmp_path / "feed.html"), "feeds")
    assert "leave out the first 43.0 s" in browser.text("#panel")
    data = browser.run("return document.querySelector('.curves').plot.data")
    assert data == [[43, 43.5, 43.75, 44.25], [16, 32, 16, 16]]


def test_a_table_is_downloaded_as_csv(browser, tmp_path, run):
    """As it is sorted and filtered: with numbers that are not rounded, and without formulas."""
    name = '=1+1, "so"'
    groups = tuple(
        dataclasses.replace(group, owner=name) if group.owner == "SGD" else group
        for each in run.operations[:1]
        for group in each.groups
    )
    program = dataclasses.replace(run.operations[0], groups=groups)
    part = RunRecords(path=tmp_path, operations=(program,))
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    browser.open(write_page([part], tmp_path / "csv.html"), "operations")
    browser.run(
        "const box = document.querySelector('input[type=search]');"
        "box.value = '1+1'; box.dispatchEvent(new Event('input'));"
        "document.querySelector('.csv').click()"
    )
    file, end = tmp_path / "Operations.csv", time.monotonic() + 20
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    head, *rows = csv.reader(file.read_text().splitlines())
    assert head[-4:] == ["operations", "FLOPs", "bytes", "time (s)"]
    own = [each for each in groups if each.owner == name]
    assert [row[0] for row in rows] == [f"'{name}"] * len(own)
    assert [float(row[4]) for row in rows] == sorted((each.flops for each in own), reverse=True)
    assert browser.console() == []


def test_every_axis_has_a_unit_or_a_name(browser, path):
    """In its numbers (2.5 s, 12 %, 3 MB), or below them."""
    axes = (
        "return [...document.querySelectorAll('.curves')].flatMap(({plot}) => plot.axes.map((a) =>"
        "a.label || String(a.values(plot, [0.5 * (plot.scales[a.scale].max + 0)])[0])))"
    )
    for tab in ("summary", "memory", "feeds", "tensors"):
        browser.open(path, tab)
        named = browser.run(axes)
        assert len(named) >= 2, tab
        assert not any(re.fullmatch(r"[\d.,e+-]*", each) for each in named), (tab, named)


def test_a_run_that_goes_on_or_was_killed_says_until_when(browser, tmp_path):
    host = socket.gethostname()
    loop = LoopRecord(number=0, model="mlp", mode="train", began=200.0, epochs=3)
    sample = {"loop": 0, "mode": "train", "epoch": 3, "began": 201.0, "seconds": 4}
    end = ExecutionSample(**sample, executions=1, steps=8)
    for pid, badge in ((os.getpid(), "running at 20"), (2**22 + 1, "killed, last seen 1970-01-01")):
        process = ProcessRecord(
            process=0, pid=pid, host=host, cores=1, platform="cpu", devices=(), began=100.0
        )
        run = RunRecords(path=tmp_path, processes=(process,), loops=(loop,), executions=(end,))
        browser.open(write_page([run], tmp_path / "report.html"))
        assert browser.text(".outcome").startswith(badge)
        assert "≥ 5.00 s" in browser.text("table")
        assert (f"millrace report {tmp_path}" in browser.text("#panel")) == (pid == os.getpid())


def test_a_tab_links_to_its_guide(browser, tmp_path, run, monkeypatch):
    monkeypatch.setattr(page_data, "docs_address", lambda: "https://a.test/docs/")
    browser.open(write_page([run], tmp_path / "report.html"), "trace")
    link = browser.driver.find_element("link text", "Documentation")
    assert link.get_attribute("href") == "https://a.test/docs/reports.md#execution-traces"
    assert len(browser.requests()) <= 1  # it waits for a click
