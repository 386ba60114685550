"""The drawings that print, and so notebooks, show of a timeline, a trace and a program's memory."""

import pytest

from millrace.base.records.memory import LiveBuffer
from millrace.base.records.program_memory import MemoryArea, ProgramMemory, ProgramSegment
from millrace.base.records.timeline import Span, Timeline
from millrace.base.records.trace import ActivitySpan, ExecutionTrace

HOSTILE = "\x1b[2J<script>"
SPANS = (
    Span(0, "F", 0, 0, 0.0, 0.2),
    Span(0, "B", 0, 0, 0.5, 1.0),
    Span(1, "F", 0, 1, 0.2, 0.3),
    Span(1, "B", 0, 1, 0.3, 0.51),
)


def shown(record):
    return str(record).splitlines()


def trace_of(spans=(), activities=(), **fields):
    fields = {"model": "m", "mode": "train", "num_groups": 2} | fields
    return ExecutionTrace(
        loop=0, epoch=1, update=4, began=0.0, spans=spans, activities=activities, **fields
    )


def test_tasks_are_drawn_to_scale():
    timeline = Timeline(SPANS, 2)
    assert timeline.drawn(20) == "stage 0 |F0   B0---|\nstage 1 |  FB0     |"
    assert timeline.drawn(13) == "stage 0 |F B|\nstage 1 | B |"
    assert Timeline((), 1).drawn(12) == "stage 0 |  |"
    *rows, numbers = shown(timeline)
    assert [len(row) for row in rows] == [110, 110]
    assert numbers == "bubble 49.5% of 1"


def test_a_trace_has_its_name_and_milliseconds():
    title, first, _, numbers = shown(trace_of(SPANS, schedule="gpipe"))
    assert title == "m: update 4 of fit 0, gpipe"
    assert first.startswith("stage 0 |F0--")
    assert numbers == "bubble 49.5% of 1000 ms"


def test_a_model_in_one_piece_shows_its_calls():
    calls = (ActivitySpan("group 0", "8 steps", 0.1, 0.5), ActivitySpan("host", "wait", 0.0, 0.1))
    title, row, numbers = shown(trace_of(activities=calls, mode="test", num_groups=1))
    assert title == "m: micro-batches 4 to 4 of evaluate 0, its calls"
    assert row.startswith("stage 0 |    ")
    assert "F0--" in row
    assert numbers == "500 ms"
    assert shown(trace_of(mode="predict"))


def program(points=5, layer="dense", **others):
    areas = (
        MemoryArea("parameters", (1000,) * points),
        MemoryArea("activations", tuple(500 * k for k in range(points))),
    )
    values = {
        "model": "net",
        "program": "train_run",
        "requirement": 4000,
        "areas": areas,
        "point": points - 1,
        "alive": (LiveBuffer("kernel", 1000, layer, "parameter", role="parameters"),),
        "segments": (ProgramSegment(0, "", ""), ProgramSegment(1, layer, "forward")),
    }
    return ProgramMemory(**{**values, **others})


def test_memory_is_drawn_by_role_with_the_peak_and_the_largest_tensors():
    title, numbers, *drawing, tensor = shown(program())
    assert title == "net, train_run"
    assert numbers == "peak 3.00 KB at point 5 of 5, dense, forward"
    assert program().drawn(height=6).splitlines() == [
        "  3.00 KB |    a  a activations 2.00 KB at the peak",
        "          |   aa  p parameters 1.00 KB at the peak",
        "          |  aaa",
        "          | aaaa",
        "          |ppppp",
        "          |ppppp",
    ]
    assert len(drawing) == 12
    assert tensor.split() == ["1.00", "KB", "dense", "parameters", "kernel"]


def test_of_many_points_each_column_has_the_fullest():
    curve = [10] * 100_000
    curve[77_777] = 1000
    memory = program(areas=(MemoryArea("other", tuple(curve)),), point=77_777)
    top = memory.drawn().splitlines()[0]
    assert len(top.partition("|")[2].split()[0]) == 1
    assert max(map(len, str(memory).splitlines())) < 150


@pytest.mark.parametrize(
    "memory",
    [program(areas=(), point=0, alive=(), segments=()), program(points=1, point=0), program(3)],
    ids=["none", "one", "three"],
)
def test_programs_of_any_length(memory):
    assert shown(memory)[1].startswith("peak ")


@pytest.mark.parametrize("field", ["model", "program", "recomputation", "layer"])
def test_names_cannot_move_the_cursor(field):
    assert "\x1b" not in str(program(**{field: HOSTILE}))
    assert "\x1b" not in str(trace_of(SPANS, model=HOSTILE))


def test_a_trial_says_so():
    title = shown(program(is_trial=True, recomputation="whole stages: dense"))[0]
    assert title == "net, train_run (compiled for comparison); computed again: whole stages: dense"
