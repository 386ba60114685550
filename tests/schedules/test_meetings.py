import itertools
import random

import pytest
from meetings import Move, check_meetings, events, timetable, walk

from case_marks import slow
from millrace.base.options.default_devices import is_v_shaped, v_devices
from millrace.errors import ScheduleError
from millrace.run.schedules.one_f_one_b import one_f_one_b
from millrace.run.schedules.table import SCHEDULES, make_schedule
from millrace.run.schedules.task import Pass

TWO = ((0,), (1,))


def words(sequence):
    return " ".join(map(str, sequence))


def refused(schedule, owners, sequences):
    with pytest.raises(ScheduleError) as info:
        check_meetings(schedule, owners, sequences)
    return str(info.value)


def test_reads_like_the_drawing():
    schedule = one_f_one_b(2, 2)
    assert words(timetable(schedule)) == ("0F0 0F0>1 0F1 1F0 0F1>1 1B0 1B0>0 0B0 1F1 1B1 1B1>0 0B1")
    found = events(schedule, TWO)
    assert {process: words(each) for process, each in found.items()} == {
        0: "0F0 0F0>1 0F1 0F1>1 1B0>0 0B0 1B1>0 0B1",
        1: "0F0>1 1F0 0F1>1 1B0 1B0>0 1F1 1B1 1B1>0",
    }
    check_meetings(schedule, TWO, found)


def test_stages_of_one_process_do_not_meet():
    assert words(events(one_f_one_b(2, 1), ((3,), (3,)))[3]) == "0F0 1F0 1B0 0B0"
    looped = make_schedule("looped", 4, 1, (0, 1, 0, 1))
    assert words(events(looped, TWO)[1]) == ("0F0>1 1F0 1F0>2 2F0>3 3F0 3B0 3B0>2 2B0>1 1B0 1B0>0")


def test_halves_of_a_backward():
    found = events(make_schedule("zero_bubble", 2, 1, (0, 1)), TWO)
    assert words(found[1]) == "0F0>1 1F0 1I0 1I0>0 1W0"
    assert words(found[0]) == "0F0 0F0>1 1I0>0 0I0 0W0"


def test_values_that_skip_a_stage():
    owners = ((0,), (1,), (2,))
    links = [(0, 1), (0, 2), (1, 2)]
    schedule = one_f_one_b(3, 2)
    found = events(schedule, owners, timetable(schedule, links))
    assert words(found[0]).startswith("0F0 0F0>1 0F0>2 0F1")
    assert words(found[2]).startswith("0F0>2 0F1>2 1F0>2 2F0 1F1>2 2B0 2B0>0 2B0>1 2F1")
    check_meetings(schedule, owners, found)
    # It is waited for, too: without the move stage 2 would run on nothing.
    late = list(found[2])
    late.remove(Move(schedule[0][0], 2))
    assert "is at 0F0>2, where it meets process 2" in refused(schedule, owners, found | {2: late})


def assignments(rows, rng):
    """Owners of the rows: one process each, all in one, replicas over processes, and any."""
    yield tuple((row,) for row in range(rows))
    yield ((0,),) * rows
    yield tuple((row % 2,) for row in range(rows))
    yield tuple((row, rows + row) for row in range(rows))  # two replicas, a process per stage
    yield ((0, 1),) * rows  # two replicas, each in a process of its own
    for _ in range(3):
        processes = range(rng.randint(1, rows + 1))
        count = rng.randint(1, min(3, len(processes)))
        yield tuple(tuple(rng.sample(processes, count)) for _ in range(rows))


def sizes():
    """Slow are five groups, but for two schedules, and four with several stages each."""
    for p, name in itertools.product(range(1, 6), SCHEDULES):
        has_several = name == "looped" or is_v_shaped(name)
        is_slow = (p == 4 and has_several) or (p == 5 and name not in ("1f1b_slack", "grouped"))
        yield slow(p, name) if is_slow else (p, name)


@pytest.mark.parametrize(("p", "name"), list(sizes()))
def test_one_order_for_all_never_blocks(name, p):
    rng = random.Random(p)
    rounds = (1, 2) if name == "looped" else (2,) if is_v_shaped(name) else (1,)
    for v, m in itertools.product(rounds, (1, 2, p, 2 * p + 1)):
        groups = tuple(stage % p for stage in range(p * v))
        if is_v_shaped(name):
            groups = v_devices(p * v)
        schedule = make_schedule(name, p * v, m, groups)
        every = [(a, b) for a in range(p * v) for b in range(a + 1, p * v)]
        for owners, links in itertools.product(assignments(p, rng), (None, every)):
            walked = walk(schedule, every if links else list(itertools.pairwise(range(p * v))))
            check_meetings(schedule, owners, events(schedule, owners, walked))
            found = events(schedule, owners, timetable(schedule, links))
            check_meetings(schedule, owners, found)
            for row, tasks in enumerate(schedule):
                for process in owners[row]:
                    mine = [event for event in found[process] if event in set(tasks)]
                    assert mine == list(tasks)  # its own tasks, in their order
            for process, sequence in found.items():
                moves = [event for event in sequence if isinstance(event, Move)]
                assert len(moves) == len(set(moves))
                homes = [event.stage for event in sequence if not isinstance(event, Move)]
                for move in moves:  # each is of a stage that the process has
                    assert move.stage in homes or move.task.stage in homes, process


def test_a_process_that_walks_its_own_row_is_found():
    # Process 1 takes what a task needs just before that task, and process 0 gives what it has
    # made just after it: each is fine alone.
    schedule = one_f_one_b(2, 3)
    (first, second, *_), (_, cotangent, *_) = schedule
    own = [event for event in events(schedule, TWO)[1] if event != Move(second, 1)]
    own.insert(own.index(Move(cotangent, 0)) + 1, Move(second, 1))
    assert words(own[:6]) == "0F0>1 1F0 1B0 1B0>0 0F1>1 1F1"
    assert words(events(schedule, TWO)[0][:5]) == f"{first} 0F0>1 0F1 0F1>1 1B0>0"
    assert refused(schedule, TWO, events(schedule, TWO) | {1: own}) == (
        "The processes would wait for each other for ever: process 0 is at 0F1>1, where it meets "
        "process 1; process 1 is at 1B0>0, where it meets process 0. All must walk the same "
        "order of tasks and moves, such as timetable(schedule)."
    )


def test_a_move_that_comes_too_late_or_never_is_found():
    schedule = one_f_one_b(2, 1)
    found = events(schedule, TWO)
    late = [found[1][1], found[1][0], *found[1][2:]]
    assert refused(schedule, TWO, found | {1: late}) == (
        "The processes would wait for each other for ever: process 0 is at 0F0>1, where it meets "
        "process 1; process 1 is at 1F0, for which it must have had 0F0>1. All must walk the same "
        "order of tasks and moves, such as timetable(schedule)."
    )
    never = [event for event in found[0] if event.__class__ is not Move]
    text = refused(schedule, TWO, found | {0: never})
    assert "process 0 is at 0B0, for which it must have had 1B0>0" in text
    assert "process 1 is at 0F0>1, where it meets process 0" in text


def blocks(owners, schedule, sequences):
    """Whether meetings block, decided by their order alone: it must be free of cycles."""
    home = {task.stage: row for row, tasks in enumerate(schedule) for task in tasks}
    after = {}
    for sequence in sequences.values():
        for first, second in itertools.pairwise(sequence):
            after.setdefault(first, set()).add(second)
    state = {}

    def cycle(event):
        if event not in state:
            state[event] = "open"
            state[event] = any(cycle(other) for other in after.get(event, ()))
        return state[event] is not False

    assert home
    assert owners
    return any(cycle(event) for event in list(after))


def test_decides_like_the_order_of_the_events():
    """Swaps events at random; a cycle in what comes after what is the same as a blocked run."""
    rng = random.Random(0)
    outcomes = []
    for _ in range(600):
        p, m = rng.randint(2, 4), rng.randint(2, 4)
        schedule = make_schedule(rng.choice(["1f1b", "gpipe", "grouped"]), p, m, tuple(range(p)))
        owners = tuple((row,) for row in range(p))
        found = {process: list(each) for process, each in events(schedule, owners).items()}
        process = rng.randrange(p)
        moves = [k for k, event in enumerate(found[process]) if isinstance(event, Move)]
        place = rng.choice(moves)
        event = found[process].pop(place)
        found[process].insert(place + rng.randint(-2, 2) if place > 1 else place + 1, event)
        needs = _needs_are_met(found)
        expected = needs and not blocks(owners, schedule, found)
        try:
            check_meetings(schedule, owners, found)
        except ScheduleError:
            assert not expected, (process, words(found[process]))
        else:
            assert expected, (process, words(found[process]))
        outcomes.append(expected)
    assert 100 < sum(outcomes) < 500


def _needs_are_met(found):
    """Whether each process has what a task takes before it, and makes before it moves."""
    for sequence in found.values():
        had = set()
        for event in sequence:
            if isinstance(event, Move):
                if event.task in sequence and event.task not in had:
                    return False
            else:
                for other in sequence:
                    if (
                        isinstance(other, Move)
                        and other.stage == event.stage
                        and other.task.micro_batch == event.micro_batch
                        and (other.task.kind is Pass.FORWARD) == (event.kind is Pass.FORWARD)
                        and other not in had
                    ):
                        return False
            had.add(event)
    return True
