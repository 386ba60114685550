import random

import pytest

from millrace.programs.plan import LoopForm
from millrace.run.compiled_loop.execution_calls import CallRules, Forms, best_unroll, slice_calls


@pytest.mark.parametrize(
    ("iterations", "unroll", "calls"),
    [(1000, 8, 125), (100, 5, 20), (97, 8, 13), (10, 5, 2), (4, 4, 1), (1, 1, 1), (7, 7, 1)],
)
def test_the_unrolled_length_takes_the_fewest_calls(iterations, unroll, calls):
    chosen = best_unroll(LoopForm(unroll=8), iterations)
    assert chosen == unroll
    assert iterations // chosen + iterations % chosen == calls


def test_an_update_is_an_iteration():
    assert best_unroll(LoopForm(unroll=8), iterations=10, iteration_rounds=4) == 2
    assert best_unroll(LoopForm(unroll=8), iterations=10, iteration_rounds=16) == 1


def is_run(call):
    return call.program == "run"


@pytest.mark.parametrize("seed", range(40))
def test_the_calls_of_slices_run_every_step_once_and_end_every_update(seed):
    choose = random.Random(seed)
    replicas, accumulated = choose.choice([1, 1, 2, 3]), choose.choice([1, 1, 2, 4])
    size = replicas * accumulated
    unroll, fits = choose.choice([(None, True), (8, True), (2, accumulated <= 2)])
    rules = CallRules(
        trains=choose.random() < 0.8,
        update_steps=size,
        replicas=replicas,
        single_steps=False,
        longest=choose.choice([1, 5, 32]),
        chunk=choose.choice([None, 3]),
    )
    if not rules.trains:
        rules = rules._replace(update_steps=replicas)
    forms = Forms(LoopForm(unroll), choose.choice([None, 4]), fits)
    begun, ended, steps, total = None, 0, 0, 0
    for count in [choose.randint(1, 40) for _ in range(6)]:
        calls, begun = slice_calls(rules, forms, begun, total % replicas, count)
        end = 0
        for call in calls:
            if call.program in ("run", "accumulate"):
                assert call.start == end
                end += call.steps
                if call.unroll is not None:  # code of a fixed number of rounds
                    rounds = call.unroll * (accumulated if is_run(call) and rules.trains else 1)
                    before = (total + call.start) % replicas
                    assert before + call.steps <= rounds * replicas
            if is_run(call):
                assert steps == 0
                assert call.steps % rules.update_steps == 0 or not rules.trains
                limits = [forms.max_tapped_steps, rules.chunk if call.unroll is None else None]
                for limit in filter(None, limits):
                    assert call.steps <= max(limit, rules.update_steps)
                ended += call.steps // rules.update_steps
            elif call.program == "zeros":
                assert steps == 0
            elif call.program == "accumulate":
                steps += call.steps
                assert steps <= size
            else:
                assert steps == size
                steps, ended = 0, ended + 1
        assert end == count
        assert begun == (steps or None)
        total += count
    if rules.trains:
        assert ended == total // size
