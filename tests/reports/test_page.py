"""The page of a run, read as HTML: without a browser."""

import pathlib

from synthetic import synthetic_run

from millrace.records.run import RunRecords
from millrace.reports.page import page, write_page


def test_it_is_written(tmp_path):
    path = write_page([synthetic_run()], tmp_path / "deep" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_of_no_records():
    assert "<title>" in page([RunRecords(path=pathlib.Path("runs/empty"))])
