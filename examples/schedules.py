"""Idle time and memory of the schedules of a pipeline, without running a model.

Four device groups; costs are multiples of one forward. The looped and the V-shaped schedules have
two stages on each group, each with half the work and half the memory; their numbers are scaled
accordingly.
"""

import sys

from millrace.run.schedules.simulate import UNIT_COST, simulate
from millrace.run.schedules.table import SCHEDULES, make_schedule
from millrace.run.schedules.text import grid

GROUPS = 4
MICRO_BATCHES = 8 if "--small" in sys.argv else 32


def in_pairs(num_stages, num_micro_batches):
    """A custom schedule as a string: two forwards, then their two backwards."""
    pairs = [range(m, min(m + 2, num_micro_batches)) for m in range(0, num_micro_batches, 2)]
    return [
        " ".join(f"{stage}{kind}{m}" for pair in pairs for kind in "FB" for m in pair)
        for stage in range(num_stages)
    ]


print(f"{GROUPS} device groups, {MICRO_BATCHES} micro-batches; sets: most activations held at once")
print("               free transfers   transfers of 0.5")
print("schedule          end  bubble        end  bubble   sets of each group")
ends = {}
for name, choice in [*zip(SCHEDULES, SCHEDULES, strict=True), ("in_pairs", in_pairs)]:
    groups = tuple(range(GROUPS))
    if name == "looped":
        groups = groups + groups  # round and round
    elif name in ("zb_v", "v_half", "v_min"):
        groups = groups + groups[::-1]  # out and back
    rounds = len(groups) // GROUPS
    schedule = make_schedule(choice, len(groups), MICRO_BATCHES, groups)
    cost = {kind: time / rounds for kind, time in UNIT_COST.items()}
    free, slow = (simulate(schedule, cost, transfer) for transfer in (0.0, 0.5))
    sets = ", ".join(f"{held / rounds:g}" for held in free.peak_in_flight)
    times = "".join(f"{t.end:10.1f} {t.bubble:7.1%} " for t in (free, slow))
    print(f"{name:11}{times}  {sets}")
    ends[name] = free.end

print("\nin_pairs, on two groups:")
print(grid(make_schedule(in_pairs, 2, 4, (0, 1))))
if min(ends, key=ends.__getitem__) != "zb_v":
    sys.exit("zb_v should be the shortest")
