import collections
import random

import pytest

from millrace.errors import ScheduleError
from millrace.run.schedules.check import check
from millrace.run.schedules.task import Pass, Task
from millrace.run.schedules.text import parse, write

pytestmark = pytest.mark.quick


def refused(text, num_stages=2, num_micro_batches=1):
    with pytest.raises(ScheduleError) as error:
        check(parse(text), num_stages, num_micro_batches)
    return str(error.value)


def test_takes_whole_and_split_backwards():
    check(parse("0F0 0B0 \n 1F0 1B0"), 2, 1)
    check(parse("0F0 0B0 \n 1F0 1I0 1W0"), 2, 1)
    check(parse("0F0 1F0 1I0 0B0 1W0"), 2, 1)


def test_an_unknown_stage():
    assert refused("0F0 0B0 \n 1F0 1B0 2F0") == (
        "Row 1 has 2F0, of stage 2. With 2 in the pipeline they go from 0 to 1. "
        "Remove the task, or assign more stages."
    )


def test_an_unknown_micro_batch():
    assert refused("0F0 0F3 0B0 \n 1F0 1B0", num_micro_batches=2) == (
        "Row 0 has 0F3, of micro-batch 3. With 2 in the update they go from 0 to 1. "
        "Remove the task, or set gradient_accumulation_steps_per_replica=4."
    )


def test_a_task_that_is_there_twice():
    assert refused("0F0 0B0 \n 1F0 1B0 1F0") == (
        "1F0 is there twice, in row 1 and in row 1. Remove one of them."
    )


def test_a_stage_in_two_rows():
    assert refused("0F0 0B0 \n 1F0 \n 1B0") == (
        "Stage 1 has 1F0 in row 1 and 1B0 in row 2. Its weights are on one device group: "
        "put all its tasks into row 1."
    )


def test_a_missing_task():
    assert refused("0F0 0B0 \n 1F0") == (
        "The schedule lacks 1B0. Each of the 2 stages needs one F, and one B or one I and one W, "
        "for each of the 1 micro-batches. Add 1B0."
    )
    assert "lacks 1B0 and 1F0." in refused("0F0 0B0")
    assert refused("0F0 0B0 \n 1F0 1I0").endswith("Add 1W0.")
    assert refused("0F0 0B0 \n 1W0").endswith("Add 1F0 and 1I0.")


def test_a_backward_whole_and_in_halves():
    assert refused("0F0 0B0 \n 1F0 1B0 1W0") == (
        "1B0 is the whole backward, and 1W0 would repeat it. Keep either 1B0, or both 1I0 and 1W0."
    )


@pytest.mark.parametrize(
    ("row", "later", "earlier"),
    [
        ("0F1 0F0 0B0 0B1", "0F1", "0F0"),
        ("0F0 0F1 0B1 0B0", "0B1", "0B0"),
        ("0F0 0F1 0I1 0I0 0W0 0W1", "0I1", "0I0"),
        ("0F0 0F1 0I0 0I1 0W1 0W0", "0W1", "0W0"),
        ("0F0 0F1 0I0 0B1 0W0", "0B1", "0W0"),  # B adds gradients, too
        ("0F0 0F1 0B1 0I0 0W0", "0B1", "0I0"),
    ],
)
def test_micro_batches_out_of_order(row, later, earlier):
    text = refused(row, num_stages=1, num_micro_batches=2)
    assert text.startswith(f"Row 0 has {later} before {earlier}.")
    assert text.endswith(f"Put {earlier} before {later}.")


def test_a_deadlock():
    text = refused("0F0 0B0 0F1 0B1 \n 1F0 1F1 1B0 1B1", num_micro_batches=2)
    assert "row 0 has 0B0 next, which waits for 1B0; row 1 has 1F1 next" in text
    assert text.endswith("In row 1, put 1B0 before 1F1.")


# The rest decides without the code under test which of many schedules a pipeline could run.


def random_schedule(rng):
    """Complete and in micro-batch order, and else in any order, good or bad."""
    sizes = num_stages, num_micro_batches = rng.randint(1, 4), rng.randint(1, 4)
    noise = rng.choice([0, 4, 8, 16])  # without any, each row begins as 1F1B does

    def when(task):
        back = task.kind is not Pass.FORWARD
        place = 2 * num_stages - task.stage if back else task.stage
        return place + 2 * task.micro_batch + rng.uniform(0, noise)

    rows = [[] for _ in range(rng.randint(1, num_stages))]
    for stage in range(num_stages):
        kinds = rng.choice(["FB", "FIW"])
        rng.choice(rows).extend(
            Task(stage, Pass(kind), m) for kind in kinds for m in range(num_micro_batches)
        )
    return tuple(map(in_order, (sorted(row, key=when) for row in rows))), *sizes


def in_order(row):
    """The row with the micro-batches of each stage and pass renumbered from 0."""
    count = collections.Counter()
    tasks = []
    for task in row:
        key = task.stage, task.kind
        tasks.append(Task(*key, count[key]))
        count[key] += 1
    return tuple(tasks)


def runs(schedule, num_stages):
    """Runs whatever may run next, in words, until nothing may."""
    rows = [list(map(str, row)) for row in schedule]
    split = {word[0] for row in rows for word in row if "I" in word}
    done = set()

    def may_run(word):
        stage, kind, m = int(word[0]), word[1], word[2:]
        if kind == "F":
            return stage == 0 or f"{stage - 1}F{m}" in done
        if kind == "W":
            return f"{stage}I{m}" in done
        after = f"{stage + 1}{'I' if str(stage + 1) in split else 'B'}{m}"
        return f"{stage}F{m}" in done and (stage == num_stages - 1 or after in done)

    while ready := [row for row in rows if row and may_run(row[0])]:
        done.add(ready[-1].pop(0))
    return not any(rows)


def verdict_of(schedule, num_stages, num_micro_batches):
    try:
        check(schedule, num_stages, num_micro_batches)
    except ScheduleError as error:
        return str(error)
    return "runs"


def test_refuses_exactly_the_schedules_that_cannot_run():
    rng = random.Random(0)
    deadlocks = 0
    for _ in range(3000):
        schedule, num_stages, num_micro_batches = random_schedule(rng)
        verdict = verdict_of(schedule, num_stages, num_micro_batches)
        if runs(schedule, num_stages):
            assert verdict == "runs", write(schedule)
        else:
            assert verdict.startswith("The schedule stops after"), write(schedule)
            deadlocks += 1
    assert 500 < deadlocks < 2500


def test_refuses_a_schedule_whose_tasks_are_shuffled_out_of_order():
    rng = random.Random(0)
    refusals = 0
    for _ in range(500):
        schedule, num_stages, num_micro_batches = random_schedule(rng)
        shuffled = tuple(tuple(rng.sample(row, len(row))) for row in schedule)
        for kinds in ("F", "BI", "BW"):
            numbers = [
                [t.micro_batch for row in shuffled for t in row if t.stage == s and t.kind in kinds]
                for s in range(num_stages)
            ]
            if any(n != sorted(n) for n in numbers):
                refusals += 1
                with pytest.raises(ScheduleError, match="takes micro-batches in order"):
                    check(shuffled, num_stages, num_micro_batches)
                break
    assert refusals > 200
