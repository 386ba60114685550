"""The page of a run that goes on, in Chromium: it changes by itself, and stays where one looks."""

import os
import re
import socket
import threading
import time

import pytest
from page_browser import CHROMIUM, DRIVER, PageBrowser

from millrace.records.directory import RunDirectory
from millrace.records.loops import EpochRecord, LoopRecord, ProcessRecord
from millrace.reports.follow import LiveServer

pytest.importorskip("selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are absent"),
]


@pytest.fixture
def records(tmp_path):
    directory = RunDirectory(tmp_path / "run <b>1</b>")
    directory.add(
        ProcessRecord(
            process=0, pid=os.getpid(), host=socket.gethostname(), cores=1, began=time.time(),
            platform="cpu", devices=("cpu:0",),
        )
    )  # fmt: skip
    directory.add(LoopRecord(number=0, model="mlp", mode="train", began=100.0, epochs=1))
    return directory


@pytest.fixture
def server(records):
    served = LiveServer(records.path)
    thread = threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join(10)


@pytest.fixture
def browser(tmp_path):
    opened = PageBrowser(tmp_path / "profile")
    yield opened
    opened.close()


FRAME = "document.querySelector('iframe:not(.loading)')"
INNER = f"{FRAME}?.contentDocument"


def test_the_page_changes_by_itself_and_stays_on_its_tab(browser, server, records):
    browser.driver.get("about:blank")
    browser.console(), browser.requests()
    browser.driver.get(server.url)
    browser.wait(f"return {INNER}?.documentElement.dataset.ready")
    assert "the run goes on" in browser.text("#state")
    assert browser.run("return document.querySelectorAll('b').length") == 0
    browser.run(f"{INNER}.getElementById('tab-feeds').click()")
    first = browser.run(f"return {FRAME}.src")
    records.add(EpochRecord(loop=0, epoch=1, ended=101.0, logs={"loss": 0.5}))
    browser.wait(f"return {FRAME}?.src !== '{first}'")
    assert browser.run(f"return {INNER}.querySelector('[aria-selected=true]').id") == "tab-feeds"
    assert browser.run("return document.querySelectorAll('iframe').length") == 1
    # The page may be kept while one looks at it.
    browser.driver.find_element("id", "paused").click()
    kept = browser.run(f"return {FRAME}.src")
    records.add(EpochRecord(loop=0, epoch=2, ended=102.0, logs={"loss": 0.25}))
    time.sleep(2.5)
    assert browser.run("return document.querySelector('iframe').src") == kept
    browser.driver.find_element("id", "paused").click()
    browser.wait(f"return {FRAME}?.src !== '{kept}'")
    assert browser.console() == []
    asked = {re.sub(r"\?.*", "", each) for each in browser.requests()}
    names = ("", "state", "page.html")
    assert asked - {"data:,"} == {server.url + name for name in names}


def test_a_server_that_has_gone_is_said(browser, server):
    browser.driver.get(server.url)
    browser.wait(f"return {INNER}?.documentElement.dataset.ready")
    server.shutdown()
    server.server_close()
    browser.wait("return document.getElementById('state').textContent.includes('not answer')")
    assert browser.run(f"return {INNER}?.documentElement.dataset.ready")
