"""Idle time and memory of the schedules of a pipeline, without running a model.

Costs are multiples of one forward. The looped and the V-shaped schedules have two stages on each
device group, each with half the work and half the memory; their numbers are scaled accordingly.
"""

from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import SCHEDULES, make_schedule
from millrace.run.schedules.text import grid

DEVICES, MICRO_BATCHES = (0, 1, 2, 3), 16

for name in SCHEDULES:
    groups = DEVICES  # of the stages
    if name == "looped":
        groups = DEVICES + DEVICES  # round and round
    elif name in ("zb_v", "v_half", "v_min"):
        groups = DEVICES + DEVICES[::-1]  # out and back
    schedule = make_schedule(name, len(groups), MICRO_BATCHES, groups)
    rounds = len(groups) // len(DEVICES)
    timeline = simulate(schedule, {kind: time / rounds for kind, time in UNIT_COST.items()})
    sets = ", ".join(f"{held / rounds:g}" for held in timeline.peak_in_flight)
    print(f"{name:11} ends at {timeline.end:5.1f}, bubble {timeline.bubble:5.1%}, sets {sets}")


def in_pairs(num_stages, num_micro_batches):  # a schedule of your own
    pairs = [(m, m + 1) for m in range(0, num_micro_batches, 2)]
    return [
        " ".join(f"{stage}{kind}{m}" for pair in pairs for kind in "FB" for m in pair)
        for stage in range(num_stages)
    ]


print("\nin pairs, on two devices:")
print(grid(make_schedule(in_pairs, 2, 4, (0, 1))))
