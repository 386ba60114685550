import pytest

from millrace.run.schedules import zb_v as module
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.text import grid, write
from millrace.run.schedules.zb_v import zb_v


def test_reads_like_the_drawing():
    assert write(zb_v(4, 2)).splitlines() == [
        "0F0 0F1 3F0 3I0 3F1 3I1 0I0 3W0 0I1 3W1 0W0 0W1",
        "1F0 2F0 1F1 2F1 2I0 1I0 2I1 1I1 2W0 2W1 1W0 1W1",
    ]
    for line in grid(zb_v(4, 3)).splitlines():
        assert f"    {line}\n" in module.__doc__


@pytest.mark.parametrize("p", range(1, 17))
def test_no_group_waits_but_for_its_first_forward(p):
    """Published: no bubble, without the wait of the groups for their first micro-batch."""
    for m in (p, p + 1, 2 * p, 3 * p + 1):
        timeline = simulate(zb_v(2 * p, m), UNIT_COST)
        assert timeline.idle == (p - 1,) * p
        spans = [[span for span in timeline.spans if span.group == group] for group in range(p)]
        for group, own in enumerate(spans):
            assert own[0].start == group
        assert spans[-1][-1].end - spans[-1][0].start == 6 * m  # the last has no gap at all


def test_one_micro_batch_takes_its_time():
    # There and back twice, and W of the first stage after it.
    assert [simulate(zb_v(2 * p, 1), UNIT_COST).end for p in (1, 2, 4, 8)] == [6, 9, 17, 33]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_transfers_cost_time_once(p):
    """A group runs one micro-batch while another moves, however many there are."""
    ends = [simulate(zb_v(2 * p, m), UNIT_COST, transfer=0.5).end - 6 * m for m in (2 * p, 8 * p)]
    assert ends == [p - 1 + 6 * (p - 1) * 0.5] * 2
