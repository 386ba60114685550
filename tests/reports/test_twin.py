"""The simulated twin of a trace, and the reasons of its idle slots."""

import dataclasses
import itertools
import time

import pytest

from millrace.base.options import default_devices
from millrace.base.records.timeline import Span, Timeline
from millrace.base.records.trace import ExecutionTrace
from millrace.run.schedules.concurrent import concurrent
from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import make_schedule
from millrace.tools.reports.bubble import idle_slots
from millrace.tools.reports.twin import schedule_of, simulated_twin


def trace_of(timeline, **fields):
    return ExecutionTrace(
        model="m",
        mode="train",
        loop=0,
        epoch=1,
        update=1,
        began=0.0,
        num_groups=timeline.num_groups,
        spans=timeline.spans,
        **fields,
    )


NAMES = ["gpipe", "1f1b", "grouped", "sequential", "zero_bubble", "zb_v", "v_half", "v_min"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transfer", [0.0, 0.25])
def test_the_twin_of_a_simulation_is_the_simulation(name, transfer):
    schedule = make_schedule(name, 4, 8, default_devices(name, 4))
    timeline = simulate(schedule, UNIT_COST, transfer)
    trace = trace_of(timeline)
    assert schedule_of(trace) == schedule
    twin = simulated_twin(trace)
    assert twin is not None
    assert twin.end == pytest.approx(timeline.end)
    assert [str(a) for a in twin.spans] == [str(b) for b in timeline.spans]


def test_costs_are_means_by_stage_and_pass():
    timeline = simulate(make_schedule("1f1b", 2, 5, (0, 1)), UNIT_COST)
    spans = [
        dataclasses.replace(each, end=each.end + 100.0 * (each.micro_batch == 4))
        for each in timeline.spans
    ]
    twin = simulated_twin(trace_of(Timeline(tuple(spans), 2)))
    assert twin is not None
    costs = {(each.stage, each.kind, round(each.duration, 6)) for each in twin.spans}
    assert costs == {(0, "F", 21.0), (0, "B", 22.0), (1, "F", 21.0), (1, "B", 22.0)}


def test_concurrent_stages_keep_their_levels():
    schedule = concurrent(make_schedule("1f1b", 3, 4, (0, 1, 2)), (0, 1, 1, 2))
    timeline = simulate(schedule, UNIT_COST)
    twin = simulated_twin(trace_of(timeline, levels=(0, 1, 1, 2)))
    assert twin is not None
    assert twin.end == timeline.end
    in_sequence = simulated_twin(trace_of(timeline))
    assert in_sequence is None or in_sequence.end > timeline.end


def test_there_is_no_twin_of_nothing_or_of_one_process_of_two():
    assert simulated_twin(trace_of(Timeline((), 1))) is None
    timeline = simulate(make_schedule("1f1b", 2, 4, (0, 1)), UNIT_COST)
    half = Timeline(tuple(span for span in timeline.spans if span.group == 1), 2)
    assert simulated_twin(trace_of(half)) is None


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("transfer", [0.0, 0.25])
def test_idle_slots_add_up_to_the_idle_time(name, transfer):
    schedule = make_schedule(name, 4, 8, default_devices(name, 4))
    timeline = simulate(schedule, UNIT_COST, transfer)
    slots = idle_slots(timeline)
    for group, idle in enumerate(timeline.idle):
        own = [slot for slot in slots if slot.group == group]
        assert sum(slot.duration for slot in own) == pytest.approx(idle, rel=1e-12)
        assert all(a.end <= b.start for a, b in itertools.pairwise(own))
        assert not any(
            slot.start < span.end and span.start < slot.end
            for slot in own
            for span in timeline.spans
            if span.group == group
        )
    assert not any("host" in slot.reason for slot in slots)


def test_each_slot_has_its_reason():
    timeline = simulate(make_schedule("1f1b", 2, 2, (0, 1)), UNIT_COST, 0.5)
    # group 0 |0F0 0F1       0B0       0B1      group 1 |  1F0 1B0 1F1 1B1
    text = [(s.group, s.start, s.end, s.reason) for s in idle_slots(timeline)]
    assert text == [
        (0, 2.0, 4.5, "waits for backward of stage 1 on micro-batch 0"),
        (0, 4.5, 5.0, "waits for the transfer of backward of stage 1 on micro-batch 0"),
        (0, 7.0, 7.5, "waits for backward of stage 1 on micro-batch 1"),
        (0, 7.5, 8.0, "waits for the transfer of backward of stage 1 on micro-batch 1"),
        (1, 0.0, 1.5, "start-up"),
        (1, 7.5, 10.0, "end"),
    ]


def test_a_late_host_and_a_group_without_tasks():
    spans = (Span(0, "F", 0, 0, 0.0, 1.0), Span(0, "F", 1, 0, 3.0, 4.0))
    slots = idle_slots(Timeline(spans, 2))
    assert [(s.group, s.duration, s.reason) for s in slots] == [
        (0, 2.0, "waits for the host"),
        (1, 4.0, "no task"),
    ]
    assert idle_slots(Timeline((), 2)) == ()


def test_the_twin_of_many_tasks_is_fast():
    trace = trace_of(simulate(make_schedule("1f1b", 8, 1250, tuple(range(8))), UNIT_COST, 0.1))
    begin = time.process_time()
    simulated_twin(trace)
    assert time.process_time() - begin < 1.0  # 20,000 tasks; a quarter of that on a quiet machine
