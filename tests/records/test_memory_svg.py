"""Pictures of memory for notebooks."""

import re
from xml.etree import ElementTree as ET

import pytest

from millrace.records.memory import LiveBuffer
from millrace.records.memory_report import DeviceMemory, MemoryReport, StageMemory
from millrace.records.memory_svg import HEIGHT, memory_svg
from millrace.records.program_memory import MemoryArea, ProgramMemory, ProgramSegment

pytestmark = pytest.mark.quick

HOSTILE = "<script>alert(1)</script>&\"'"


def program(points=5, layer="dense", **others):
    areas = (
        MemoryArea("parameters", (1000,) * points),
        MemoryArea("activations", tuple(100 * k for k in range(points))),
    )
    values = {
        "model": "net",
        "program": "train_run",
        "requirement": 2000,
        "areas": areas,
        "point": points - 1,
        "alive": (LiveBuffer("kernel", 1000, layer, "parameter", role="parameters"),),
        "segments": (ProgramSegment(0, "", ""), ProgramSegment(1, layer, "forward")),
    }
    return ProgramMemory(**{**values, **others})


def parsed(html):
    return ET.fromstring(html)


def paths(html):
    return re.findall(r'<path d="M([^"]*)Z"', html)


def test_a_program_has_areas_a_marked_peak_a_legend_and_a_table():
    html = program()._repr_html_()
    parsed(html)
    assert len(paths(html)) == 2
    assert "peak 1.40 KB at point 5 of 5, in dense, forward" in html
    for words in ("parameters 1.00 KB", "activations 400 B", ">peak</text>", "<td>kernel</td>"):
        assert words in html
    assert "<script" not in html
    assert "http://www.w3.org/2000/svg" in html
    assert html.count("http") == 1  # nothing is loaded


def test_areas_stand_on_each_other_and_the_highest_reaches_the_top():
    first, second = paths(memory_svg("", [("parameters", [1, 1]), ("gradients", [0, 3])], 1))
    heights = [[float(point.split()[1]) for point in each.split("L")] for each in (first, second)]
    assert max(heights[0]) - min(heights[0]) == HEIGHT / 4
    assert min(heights[1]) == max(heights[0]) - HEIGHT
    assert max(heights[1]) == min(heights[0])


@pytest.mark.parametrize("field", ["model", "program", "recomputation", "layer", "name"])
def test_any_name_is_escaped(field):
    if field == "name":
        memory = program(alive=(LiveBuffer(HOSTILE, 1, HOSTILE, "", HOSTILE, HOSTILE),))
    else:
        memory = program(**{field: HOSTILE})
    html = memory._repr_html_()
    parsed(html)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_many_points_keep_the_peak_and_few_bytes():
    curve = [10] * 100_000
    curve[77_777] = 1000
    svg = memory_svg("", [("other", curve)], 77_777)
    parsed(svg)
    assert len(svg) < 50_000
    assert min(float(point.split()[1]) for point in paths(svg)[0].split("L")) == 56


@pytest.mark.parametrize(
    "memory",
    [program(areas=(), point=0, alive=(), segments=()), program(points=1, point=0), program(3)],
    ids=["none", "one", "three"],
)
def test_programs_of_any_length(memory):
    parsed(memory._repr_html_())


def test_a_memory_report_has_a_picture_of_each_device():
    stage = StageMemory(
        stage=0, parameters=4, optimizer_state=8, accumulators=0, temporaries=20, in_flight=3,
        batches=1, other=0,
    )  # fmt: skip
    alive = (LiveBuffer(HOSTILE, 4, "dense", "parameter"),)
    devices = tuple(DeviceMemory((f"cpu:{k}",), "train_run", (stage,), alive) for k in range(2))
    html = MemoryReport(HOSTILE, "f32[2]", devices)._repr_html_()
    parsed(html)
    assert html.count("<svg") == 2
    assert "peak 36 B" in html
    assert "temporaries 20 B" in html
    assert "<script" not in html


def test_a_trial_says_so():
    html = program(is_trial=True, recomputation="whole stages: dense")._repr_html_()
    assert "compiled for comparison" in html
    assert "computed again: whole stages: dense" in html
