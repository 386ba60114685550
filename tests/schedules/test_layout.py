import pytest

from millrace.base.records.timeline import Span, Timeline
from millrace.run.schedules.text import cuts, lay_out

pytestmark = pytest.mark.quick


def draw(*times, cell=3):
    spans = tuple(Span(0, "F", m, 0, *time) for m, time in enumerate(times))
    lines, uncut = lay_out(Timeline(spans, 1), {s: f"F{s.micro_batch}" for s in spans}, cell)
    return lines[0], uncut


def test_columns_are_to_scale():
    assert draw((0, 1), (2, 3), (3, 6))[0] == "F0    F1 F2------ "
    assert draw((0, 1), (2, 3), (3, 6), cell=5)[0] == "F0--      F1-- F2------------ "


def test_a_short_task_keeps_its_label_and_moves_the_rest():
    assert draw((0, 1), (1, 1.1), (1.1, 2.1))[0] == "F0 F1 F2 "


def test_one_very_short_task_does_not_stretch_the_others():
    line, _ = draw((0, 1), (1, 1.0001), (1.0001, 2), (2, 3))
    assert len(line) < 15


def test_a_task_without_time_has_no_room():
    assert draw((0, 1), (1, 1), (1, 2))[0] == "F0 F2 "
    assert draw((0, 0))[0] == ""


def test_tells_where_labels_are():
    assert draw((0, 1), (2, 3))[1] == {1, 7}


def test_cuts_go_round_labels():
    assert [(c.start, c.stop) for c in cuts(20, {10}, 10)] == [(0, 9), (9, 19), (19, 20)]


def test_parts_are_about_equally_long():
    assert [(c.start, c.stop) for c in cuts(110, (), 100)] == [(0, 61), (61, 110)]


def test_a_label_longer_than_the_line_is_cut_all_the_same():
    assert [(c.start, c.stop) for c in cuts(4, {1, 2, 3}, 2)] == [(0, 2), (2, 4)]
    assert len(list(cuts(3, (), 0))) == 3
