import pytest

from millrace.base.records.timeline import Span, Timeline

pytestmark = pytest.mark.quick

# The drawing of the module: 1F1B, 2 stages, 2 micro-batches.
DRAWING = Timeline(
    (
        Span(0, "F", 0, 0, 0, 1),
        Span(0, "F", 1, 0, 1, 2),
        Span(0, "B", 0, 0, 4, 6),
        Span(0, "B", 1, 0, 7, 9),
        Span(1, "F", 0, 1, 1, 2),
        Span(1, "B", 0, 1, 2, 4),
        Span(1, "F", 1, 1, 4, 5),
        Span(1, "B", 1, 1, 5, 7),
    ),
    num_groups=2,
)


def test_a_span_prints_as_its_task():
    span = Span(2, "F", 10, 1, 3.0, 4.5)
    assert str(span) == "2F10"
    assert span.duration == 1.5


def test_says_what_the_drawing_says():
    assert DRAWING.end == 9
    assert DRAWING.busy == (6, 6)
    assert DRAWING.idle == (3, 3)
    assert DRAWING.bubble == pytest.approx(6 / 18)
    assert DRAWING.num_stages == 2
    assert DRAWING.in_flight == DRAWING.peak_in_flight == (2, 1)


def test_order_of_spans_does_not_matter():
    turned = Timeline(DRAWING.spans[::-1], 2)
    assert (turned.in_flight, turned.busy) == (DRAWING.in_flight, DRAWING.busy)


def test_a_split_backward_holds_its_set_until_the_weights_are_done():
    spans = (
        Span(0, "F", 0, 0, 0, 1),
        Span(0, "I", 0, 0, 1, 2),
        Span(0, "F", 1, 0, 2, 3),
        Span(0, "W", 0, 0, 3, 4),
        Span(0, "I", 1, 0, 4, 5),
        Span(0, "W", 1, 0, 5, 6),
    )
    assert Timeline(spans, 1).in_flight == (2,)
    whole = tuple(s for s in spans if s.kind != "W")
    assert Timeline(whole, 1).in_flight == (1,)


def test_stages_of_one_group_are_added_at_one_time():
    spans = (
        Span(0, "F", 0, 0, 0, 1),
        Span(1, "F", 0, 0, 1, 2),
        Span(1, "B", 0, 0, 2, 4),
        Span(0, "B", 0, 0, 4, 6),
        Span(1, "F", 1, 0, 6, 7),  # Both stages hold two in all, but not at this time.
        Span(1, "F", 2, 0, 7, 8),
        Span(1, "B", 1, 0, 8, 9),
        Span(1, "B", 2, 0, 9, 10),
    )
    assert Timeline(spans, 1).in_flight == (1, 2)
    assert Timeline(spans, 1).peak_in_flight == (2,)


def test_measured_times_may_overlap():
    spans = (
        Span(0, "F", 0, 0, 0.0, 1.0),
        Span(0, "B", 0, 0, 1.0, 2.1),
        Span(0, "F", 1, 0, 2.0, 3.0),
        Span(0, "B", 1, 0, 3.0, 4.0),
    )
    assert Timeline(spans, 1).in_flight == (2,)


def test_forwards_alone_hold_nothing():
    spans = tuple(Span(0, "F", m, 0, m, m + 1) for m in range(4))
    assert Timeline(spans, 1).in_flight == (1,)


def test_an_empty_timeline_is_idle_for_no_time():
    empty = Timeline((), 2)
    assert (empty.end, empty.bubble, empty.num_stages) == (0, 0, 0)
    assert (empty.busy, empty.in_flight, empty.peak_in_flight) == ((0, 0), (), (0, 0))


def test_a_group_without_tasks_is_idle_all_the_time():
    timeline = Timeline((Span(0, "F", 0, 0, 0, 3),), num_groups=2)
    assert timeline.idle == (0, 3)
    assert timeline.bubble == 0.5
