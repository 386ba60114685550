"""The picture of a timeline or a trace in a notebook."""

import re

import pytest

from millrace.records.timeline import DRAWN, Span, Timeline
from millrace.records.trace import ActivitySpan, ExecutionTrace
from millrace.schedules.simulate import UNIT_COST, simulate
from millrace.schedules.table import make_schedule

pytestmark = pytest.mark.quick


def trace_of(spans=(), activities=(), **fields):
    fields = {"model": "m", "mode": "train", "num_groups": 2} | fields
    return ExecutionTrace(
        loop=0, epoch=1, update=4, began=0.0, spans=spans, activities=activities, **fields
    )


def test_a_timeline_is_drawn_in_a_notebook():
    timeline = simulate(make_schedule("1f1b", 2, 4, (0, 1)), UNIT_COST)
    html = timeline._repr_html_()
    assert html.count("<rect x=") >= len(timeline.spans)
    assert ">stage 0<" in html
    assert "bubble" in html
    assert '<svg style="max-width: none"' in html  # Jupyter's is 100 %, whatever the width


def test_its_style_stays_within_the_picture():
    """Rules of a picture within a page are those of the whole page."""
    html = Timeline((Span(0, "F", 0, 0, 0.0, 1.0),), 1)._repr_html_()
    style = re.search("<style>(.*?)</style>", html, re.S).group(1)
    selectors = [line.split("{")[0].strip() for line in style.splitlines() if "{" in line]
    rules = [each for each in selectors if not each.startswith("@media")]
    assert rules
    assert all(each.startswith(".timeline ") for each in rules)


def test_a_trace_is_drawn_in_milliseconds_with_its_name():
    timeline = simulate(make_schedule("gpipe", 2, 4, (0, 1)), UNIT_COST)
    html = trace_of(timeline.spans, model="<script>", schedule="gpipe")._repr_html_()
    assert "&lt;script&gt;: update 4 of fit 0, gpipe" in html
    assert "<script>" not in html
    assert "15000 ms" in html  # of 15 s


def test_a_model_in_one_piece_shows_its_calls():
    calls = (ActivitySpan("group 0", "8 steps", 0.0, 0.5), ActivitySpan("host", "wait", 0.0, 0.1))
    html = trace_of(activities=calls, mode="test", num_groups=1)._repr_html_()
    assert "micro-batches 4 to 4 of evaluate 0, its calls" in html
    assert html.count('<g class="F"><title>') == 1
    assert "<svg" in trace_of(mode="predict")._repr_html_()


def test_a_picture_is_bounded():
    spans = tuple(Span(0, "F", k, 0, float(k), k + 1.0) for k in range(3 * DRAWN))
    html = Timeline(spans, 1)._repr_html_()
    assert f"the first {DRAWN:,} of {3 * DRAWN:,} tasks" in html
    assert len(html) < 1_000_000
