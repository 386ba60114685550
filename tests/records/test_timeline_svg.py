"""The picture is read as XML: what is drawn, where, and to which scale."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from millrace.records.timeline import Span, Timeline
from millrace.records.timeline_svg import timeline_svg
from millrace.schedules.simulate import UNIT_COST, simulate
from millrace.schedules.table import make_schedule

pytestmark = pytest.mark.quick

SVG = "{http://www.w3.org/2000/svg}"
GROUPS = {"looped": (0, 1, 0, 1), "zb_v": (0, 1, 1, 0)}


def timeline_of(name="1f1b", micro_batches=8, transfer=0.0):
    groups = GROUPS.get(name, (0, 1, 2, 3))
    return simulate(make_schedule(name, 4, micro_batches, groups), UNIT_COST, transfer)


def parse(timeline, title="a title", **options):
    return ET.fromstring(timeline_svg(timeline, title, **options))


def tasks(root):
    """Class, tooltip, rectangle and label of each task."""
    for task in root.find(f"{SVG}g[@class='tasks']"):
        rect = {key: float(value) for key, value in task.find(f"{SVG}rect").attrib.items()}
        text = task.find(f"{SVG}text")
        tooltip = task.find(f"{SVG}title").text
        yield task.get("class"), tooltip, rect, None if text is None else text.text


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "sequential", "looped", "zero_bubble", "zb_v"])
@pytest.mark.parametrize("micro_batches", [1, 8, 64])
def test_each_task_once_to_scale_in_its_row_without_overlap(name, micro_batches):
    timeline = timeline_of(name, micro_batches, transfer=0.25)
    drawn = list(tasks(parse(timeline)))
    assert sorted(tooltip.split(":")[0] for _, tooltip, _, _ in drawn) == sorted(
        map(str, timeline.spans)
    )
    by_task = {tooltip.split(":")[0]: (kind, rect) for kind, tooltip, rect, _ in drawn}
    rows = {}
    (scale,) = {round(by_task[str(span)][1]["width"] / span.duration, 1) for span in timeline.spans}
    assert scale > 0
    first = min(rect["x"] for _, _, rect, _ in drawn)
    for span in timeline.spans:
        kind, rect = by_task[str(span)]
        assert kind == span.kind
        assert rect["x"] == pytest.approx(first + rect["width"] / span.duration * span.start, 0.01)
        rows.setdefault(span.group, []).append((rect["x"], rect["x"] + rect["width"], rect["y"]))
    for row in rows.values():
        assert len({y for _, _, y in row}) == 1
        ends = sorted(row)
        for (_, end, _), (begin, _, _) in itertools.pairwise(ends):
            assert begin >= end - 1e-6
    assert len({row[0][2] for row in rows.values()}) == timeline.num_groups


def test_title_bubble_rows_and_tooltips_say_what_is_seen():
    root = parse(timeline_of(), "1f1b: 4 stages")
    assert root.find(f"{SVG}title").text == "1f1b: 4 stages; bubble 27.3%: 36 of 132 idle"
    words = texts(root)
    assert words[:2] == ["1f1b: 4 stages", "bubble 27.3%: 36 of 132 idle"]
    assert [word for word in words if word.startswith("stage")] == [f"stage {n}" for n in range(4)]
    assert [word for word in words if word.isdigit()] == ["0", "5", "10", "15", "20", "25", "30"]
    tooltips = [tooltip for _, tooltip, _, _ in tasks(root)]
    assert "1B0: backward, stage 1, micro-batch 0; 8 to 10" in tooltips


def test_the_legend_has_the_passes_that_are_there():
    assert texts(parse(timeline_of()))[-3:] == ["F forward", "B backward", "idle"]
    assert texts(parse(timeline_of("zero_bubble")))[-4:] == [
        *("F forward", "I backward, for inputs", "W backward, for weights", "idle"),
    ]


def test_groups_of_several_stages_say_which_stage():
    root = parse(timeline_of("looped"))
    assert {"group 0", "group 1"} <= set(texts(root))
    assert "2F0" in [label for *_, label in tasks(root)]


@pytest.mark.slow
def test_every_label_fits_its_task_or_is_left_out():
    assert all(label for *_, label in tasks(parse(timeline_of(micro_batches=16))))
    root = parse(timeline_of(micro_batches=1000))
    drawn = list(tasks(root))
    assert len(drawn) == 8000
    assert not any(label for *_, label in drawn)
    assert float(root.get("width")) < 4200


def test_a_measured_timeline_has_its_unit():
    spans = Span(0, "F", 0, 0, 0.0, 0.002), Span(0, "B", 0, 0, 0.003, 0.005)
    root = parse(Timeline(spans, 1), unit="s")
    assert "bubble 20.0%: 0.001 s of 0.005 s idle" in texts(root)
    assert "0.001 s" in texts(root)
    assert list(tasks(root))[1][1].endswith("0.003 to 0.005 s")


def test_nothing_is_drawn_as_nothing():
    root = parse(Timeline((), 2))
    assert list(tasks(root)) == []
    assert "bubble 0.0%: 0 of 0 idle" in texts(root)
    assert {"stage 0", "stage 1"} <= set(texts(root))
    no_time = Timeline((Span(0, "F", 0, 0, 0.0, 0.0),), 1)
    assert [rect["width"] for _, _, rect, _ in tasks(parse(no_time))] == [0]


def test_a_title_may_have_any_character():
    assert texts(parse(timeline_of(), 'a < b & "c"'))[0] == 'a < b & "c"'


def test_light_and_dark_pages_and_nothing_from_elsewhere():
    text = timeline_svg(timeline_of(), "a title")
    assert "@media (prefers-color-scheme: dark)" in text
    root = ET.fromstring(text)
    assert not {"script", "image", "use", "a"} & {
        node.tag.removeprefix(SVG) for node in root.iter()
    }
    assert "url(" not in text
    assert "@import" not in text
