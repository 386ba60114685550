"""Where the time of an update would go on 8, 64 and 512 devices, by simulation."""

from millrace.run.schedules.costs import UpdateCosts, equal_stages
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.simulate import UNIT_COST
from millrace.run.schedules.update_time import update_time

for stages, micro_batches in ((8, 32), (64, 32), (64, 256), (512, 32)):
    schedule = one_f_one_b(num_stages=stages, num_micro_batches=micro_batches)
    # In units of one forward of a stage; a backward takes two.
    costs = UpdateCosts(tasks=equal_stages(UNIT_COST, stages), transfer=0.1, dispatch=0.01)
    parts = dict(update_time(schedule, costs).parts())
    total = sum(parts.values())
    shares = ", ".join(f"{name} {part / total:.0%}" for name, part in parts.items() if part)
    print(f"{stages} devices, {micro_batches} micro-batches: {total:.0f} forwards long, {shares}")
