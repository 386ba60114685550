import itertools
import random
from functools import cache

import numpy as np
import pytest

from millrace.recomputation import pareto as recompute_fronts
from millrace.recomputation.pareto import (
    Again,
    ChainLink,
    Choice,
    Once,
    Way,
    extra_of,
    ladder,
    pareto,
    peak_of,
)


def keeps(input_bytes, forward, kept, working):
    return ChainLink(input_bytes, forward, (Way(kept, working, 0.0),))


def random_chain(rng, size, most_ways=3, most=9):
    return [
        ChainLink(
            rng.randint(0, most) if segment else 0,
            float(rng.randint(0, 9)),
            tuple(
                Way(kept, kept + rng.randint(0, most), float(rng.randint(0, 4)))
                for kept in (rng.randint(0, most) for _ in range(rng.randint(1, most_ways)))
            ),
        )
        for segment in range(size)
    ]


def all_plans(links):
    """Every plan there is, but for an `Again` in which there is only an `Again`."""

    @cache
    def plans(begin, end):
        if begin == end:
            return [()]
        return longer(begin, end) + [(Again(items),) for items in longer(begin, end)]

    @cache
    def longer(begin, end):
        found = []
        for middle in range(begin + 1, end + 1):
            firsts = [Again(items) for items in longer(begin, middle)] if middle < end else []
            if middle == begin + 1:
                firsts += [Once(begin, way) for way in range(len(links[begin].ways))]
            found += [(first, *rest) for first in firsts for rest in plans(middle, end)]
        return found

    return plans(0, len(links))


def all_outcomes(links):
    """Peak and extra of every plan; equal ones once, and none left out for being beaten."""

    @cache
    def outcomes(begin, end):
        if begin == end:
            return np.zeros((1, 2), int)
        link, found = links[begin], []
        rest = outcomes(begin + 1, end)
        for way in link.ways:
            held, own = link.input_bytes + way.kept_bytes, link.input_bytes + way.working_bytes
            found.append(joined([own], [int(way.extra_flops)], held, rest))
        for middle in range(begin + 1, end):
            group = outcomes(begin, middle)
            forward = int(sum(link.forward_flops for link in links[begin:middle]))
            rest = outcomes(middle, end)
            found.append(joined(group[:, 0], group[:, 1] + forward, link.input_bytes, rest))
        return distinct(np.concatenate(found))

    def joined(owns, extras, held, rest):
        peaks = np.maximum(np.asarray(owns)[:, None], held + rest[:, 0])
        totals = np.asarray(extras)[:, None] + rest[:, 1]
        return distinct(np.stack([peaks.ravel(), totals.ravel()], axis=1))

    def distinct(pairs):
        return np.stack(np.divmod(np.unique(pairs[:, 0] * 10**6 + pairs[:, 1]), 10**6), axis=1)

    return [(int(peak), float(extra)) for peak, extra in outcomes(0, len(links))]


def unbeaten(outcomes):
    cheapest = {}  # for each peak
    for peak, extra in outcomes:
        cheapest[peak] = min(extra, cheapest.get(peak, extra))
    found = cheapest.items()
    return sorted((p for p in found if not any(beats(other, p) for other in found)), reverse=True)


def beats(one, other):
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def points(choices):
    return [(choice.peak_bytes, choice.extra_flops) for choice in choices]


def segments(items):
    return [
        segment
        for item in items
        for segment in ([item.segment] if isinstance(item, Once) else segments(item.items))
    ]


def check(links, choices):
    """They are plans of the whole chain with the peaks and FLOPs they say, in strict order."""
    for choice in choices:
        assert segments(choice.items) == list(range(len(links)))
        assert peak_of(links, choice.items) == choice.peak_bytes
        assert extra_of(links, choice.items) == choice.extra_flops
    for one, other in itertools.pairwise(choices):
        assert one.peak_bytes > other.peak_bytes
        assert one.extra_flops < other.extra_flops


def test_what_plans_take():
    links = [keeps(0, 1, 10, 11), keeps(2, 2, 20, 21), keeps(3, 4, 30, 31), keeps(4, 8, 40, 41)]
    a, b, c, d = (Once(segment, 0) for segment in range(4))
    for items, peak, extra in [
        ((), 0, 0),
        ((d,), 45, 0),
        ((a, b, c, d), 10 + 22 + 33 + 45, 0),
        ((Again((a, b)), c, d), 0 + 33 + 45, 1 + 2),
        ((a, Again((b, c)), d), 10 + 2 + (20 + 34), 2 + 4),  # the group's own peak is the highest
        ((Again((Again((a,)), b)), Again((c,)), d), 0 + 3 + 45, (1 + 2) + 1 + 4),
    ]:
        assert peak_of(links, items) == peak
        assert extra_of(links, items) == extra


def test_a_chain_of_two():
    links = [keeps(0, 10, 8, 8), keeps(2, 5, 4, 6)]
    assert pareto(links) == [
        Choice(8 + 2 + 6, 0.0, (Once(0, 0), Once(1, 0))),
        Choice(2 + 6, 10.0, (Again((Once(0, 0),)), Once(1, 0))),
    ]


def test_ways_come_before_groups_where_they_cost_less():
    ways = Way(8, 8, 0.0), Way(4, 8, 1.0), Way(3, 8, 2.0), Way(5, 8, 2.0)
    links = [ChainLink(0, 10.0, ways), keeps(2, 5, 4, 6)]
    assert points(pareto(links)) == [(16, 0), (12, 1), (11, 2), (8, 10)]


def test_one_segment_gains_nothing_from_a_second_forward():
    links = [ChainLink(3, 5.0, (Way(0, 7, 2.0), Way(6, 9, 0.0), Way(0, 7, 3.0)))]
    assert pareto(links) == [Choice(12, 0.0, (Once(0, 1),)), Choice(10, 2.0, (Once(0, 0),))]


def test_the_least_memory_is_that_of_running_all_from_the_start_again():
    links = [keeps(int(segment > 0), 1, 8, 8) for segment in range(4)]
    items = (Once(0, 0),)
    for segment in range(1, 4):
        items = (Again(items), Once(segment, 0))
    assert pareto(links)[-1] == Choice(1 + 8, 3.0 + 2.0 + 1.0, items)


def test_nothing_to_plan():
    assert pareto([]) == ladder([]) == [Choice(0, 0.0, ())]


def test_segments_without_bytes_run_in_their_cheapest_way():
    links = [ChainLink(0, 1.0, (Way(0, 0, 2.0), Way(0, 0, 1.0)))] * 3
    assert pareto(links) == [Choice(0, 3.0, tuple(Once(segment, 1) for segment in range(3)))]


def test_bytes_beyond_32_bits_and_broken_flops_are_exact():
    links = [keeps(2**40 + segment, 0.1 * segment, 2**41 + 1, 2**42) for segment in range(8)]
    check(links, pareto(links))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_nothing_beats_the_front_of_a_short_chain(size, seed):
    links = random_chain(random.Random(seed), size, most_ways=3 if size < 5 else 1)
    plans = {items: (peak_of(links, items), extra_of(links, items)) for items in all_plans(links)}
    choices = pareto(links)
    check(links, choices)
    assert {choice.items for choice in choices} <= set(plans)
    assert points(choices) == unbeaten(plans.values())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("size", [6, 8, 10])
def test_nothing_beats_the_front_of_a_longer_chain(size, seed):
    links = random_chain(random.Random(seed), size, most=9 if size < 10 else 5)
    choices = pareto(links)
    check(links, choices)
    assert points(choices) == unbeaten(all_outcomes(links))


def test_both_lists_of_all_plans_agree():
    links = random_chain(random.Random(0), 4)
    plans = [items for items in all_plans(links) if not lasts_again(items)]
    assert {(peak_of(links, p), extra_of(links, p)) for p in plans} == set(all_outcomes(links))


def lasts_again(items):
    """Whether a range ends with an `Again`, which costs FLOPs and saves nothing."""
    groups = [item.items for item in items if isinstance(item, Again)]
    return isinstance(items[-1], Again) or any(map(lasts_again, groups))


@pytest.mark.parametrize("seed", range(5))
def test_thinned_fronts_are_of_plans_and_keep_their_ends(seed, monkeypatch):
    links = random_chain(random.Random(seed), 14, most=1000)
    exact = pareto(links)
    monkeypatch.setattr(recompute_fronts, "WORK_INSIDE", 0)
    monkeypatch.setattr(recompute_fronts, "LEAST_POINTS_INSIDE", 5)
    monkeypatch.setattr(recompute_fronts, "MOST_POINTS_AT_END", 12)
    thinned = pareto(links)
    check(links, thinned)
    assert len(thinned) <= 12 < len(exact)
    assert thinned[0].extra_flops == exact[0].extra_flops
    assert thinned[-1].peak_bytes == exact[-1].peak_bytes
    assert not any(beats(one, other) for one in points(thinned) for other in points(exact))


def test_a_hundred_segments():
    links = random_chain(random.Random(0), 100, most=10**9)
    rungs = ladder(links)
    check(links, rungs)
    assert rungs[0].extra_flops == sum(min(w.extra_flops for w in link.ways) for link in links)
    assert rungs[0].peak_bytes > 5 * rungs[-1].peak_bytes


@pytest.mark.parametrize("ratio", [0.5, 0.93, 1.0])
@pytest.mark.parametrize("seed", range(10))
def test_a_ladder_has_both_ends_and_no_narrow_steps(seed, ratio):
    links = random_chain(random.Random(seed), 8)
    choices, rungs = pareto(links), ladder(links, ratio)
    assert (rungs[0], rungs[-1]) == (choices[0], choices[-1])
    assert [choice for choice in choices if choice in rungs] == rungs
    if len(rungs) > 2:
        assert all(b.peak_bytes <= ratio * a.peak_bytes for a, b in itertools.pairwise(rungs))
    if ratio == 1:
        assert rungs == choices
