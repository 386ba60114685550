"""Plans of a chain that no other one beats in both memory and FLOPs, for every budget.

    peak                       a b c d are the front of some range begin..end, the dots plans that
     |  a                      one of them beats. A plan of the range begins with its first segment
     |     .  .                `Once`, in one of its ways, before a plan of the tail; or with
     |   b    .                `Again` over begin..middle, run by any plan of that range, before a
     |       c     .           plan of middle..end. So a front is made of those of shorter ranges.
     |          .      d
     +------------------ extra

Before a tail of peak p, of all plans of a group only one matters: the cheapest whose own peak is
at most h + p, where h is the group's input. And after a group of own peak p only the cheapest tail
whose peak is at most p - h. So two fronts make as many candidates as they have points together,
not as many as they have pairs.

Sources: Beaumont et al. 2019, arXiv 1911.13214, for optimal plans of chains of unequal segments;
Zhao et al. 2023, arXiv 2307.01236, for several ways to run each.

    peak                       pareto    a b c d e    nothing beats one of these in both
     | a b                     ladder    a c e        each at most `ratio` of the peak before
     |      c  d
     |              e          The first costs the fewest FLOPs, the last the least memory.
     +-------------- extra

`plan.py` defines what a plan is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from millrace.recomputation.plan import (
    Again,
    ChainLink,
    Item,
    Once,
    Way,
    extra_of,
    forward_of,
    peak_of,
)

# Fronts of more points than this are thinned. Those that end with the chain are few, and all plans
# go through them; so they keep more. On 100 random segments with three ways that takes 2.5 s. For a
# given budget of memory plans then cost 0.2% of a forward more than with 768 and 4096 points, and
# 7% at worst; with 64 and 512 points it is 0.7%. On 100 segments of two kinds it is 0.01%.
MOST_POINTS_AT_END = 2048
WORK_INSIDE = 500_000  # points x segments^2: 50 points for 100 segments, 1250 for 20
LEAST_POINTS_INSIDE = 32


class Points(NamedTuple):
    """Plans of one range or of several, each as its first item and the plan of the tail."""

    peak: np.ndarray
    extra: np.ndarray
    left: np.ndarray  # index among the groups that begin there, or -1 - way
    right: np.ndarray  # index among the tails that end there

    def at(self, indices: np.ndarray) -> "Points":
        """Returns the points at `indices`."""
        return Points(*(values[indices] for values in self))

    @classmethod
    def join(cls, *points: "Points") -> "Points":
        """Returns several sets of points, one after another."""
        return cls(*map(np.concatenate, zip(*points, strict=True)))


class FrontTable:
    """Fronts with one end in common, one after another: in each, peaks rise and extras fall.

    Keys put the points of all fronts in one order. So one search looks up many budgets in many
    fronts; a NumPy call for each pair of fronts would take most of the time.
    """

    def __init__(self, group: int, scale: int) -> None:
        self._scale = scale  # above all peaks; times the number of segments below 2^63
        self.group = np.array([group])  # of each point, rising: which front it is in
        self.points = Points(*(np.zeros(1, dtype) for dtype in (int, float, int, int)))
        self._keys = self.group * scale

    def append(self, group: int, points: Points) -> None:
        """Adds a front, of a higher group than those before."""
        groups = np.full(len(points.peak), group)
        self.group = np.concatenate([self.group, groups])
        self.points = Points.join(self.points, points)
        self._keys = np.concatenate([self._keys, groups * self._scale + points.peak])

    def cheapest(self, groups: np.ndarray, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pairs of a group and a budget that have a point, and the index of each."""
        points = np.searchsorted(self._keys, groups * self._scale + budgets, side="right") - 1
        pairs = np.flatnonzero(self.group[points] == groups)
        return pairs, points[pairs]


class Fronts:
    """The fronts of all ranges.

    Attributes:
        groups: for each begin the ranges begin..k, k rising. Their extras include the forward of
            the range: the cost of running it `Again`.
        tails: for each end the ranges k..end, k falling, in groups -k.
    """

    def __init__(self, links: Sequence[ChainLink]) -> None:
        """Computes all fronts.

        Args:
            links: the segments, in the order of their forward.
        """
        self._again: dict[tuple[int, int], Again] = {}
        size = len(links)
        scale = 1 + sum(
            link.input_bytes + max(max(way.kept_bytes, way.working_bytes) for way in link.ways)
            for link in links
        )
        inside = max(LEAST_POINTS_INSIDE, WORK_INSIDE // max(1, size) ** 2)
        self.groups = [FrontTable(begin, scale) for begin in range(size)]
        self.tails = [FrontTable(-end, scale) for end in range(size + 1)]
        for begin in reversed(range(size)):
            groups = self.groups[begin]
            for end in range(begin + 1, size + 1):
                tails = self.tails[end]
                most = inside if end < size else max(inside, MOST_POINTS_AT_END)
                points = _candidates(links[begin], begin, groups, tails)
                points = points.at(_front(points.peak, points.extra))
                points = points.at(_even_steps(points.peak, points.extra, most))
                tails.append(-begin, points)
                forward = forward_of(links[begin:end])
                groups.append(end, points._replace(extra=forward + points.extra))

    def items(self, begin: int, end: int, left: int, right: int) -> tuple[Item, ...]:
        """Returns the items of the plan of a point of begin..end."""
        items: list[Item] = []
        while begin < end:
            if left < 0:
                items.append(Once(begin, -1 - left))
                begin += 1
            else:
                item, begin = self._group(begin, left)
                items.append(item)
            tails = self.tails[end].points
            left, right = int(tails.left[right]), int(tails.right[right])
        return tuple(items)

    def _group(self, begin: int, point: int) -> tuple[Again, int]:
        end = int(self.groups[begin].group[point])
        if (begin, point) not in self._again:  # the plans of a chain share most of their groups
            points = self.groups[begin].points
            left, right = int(points.left[point]), int(points.right[point])
            self._again[begin, point] = Again(self.items(begin, end, left, right))
        return self._again[begin, point], end


def _candidates(link: ChainLink, begin: int, groups: FrontTable, tails: FrontTable) -> Points:
    """Returns plans of a range, among them all that could be in its front."""
    group, tail, held = groups.points, tails.points, link.input_bytes
    ways = [(way.kept_bytes, way.working_bytes, way.extra_flops) for way in link.ways]
    kept, working, extra = (np.array(values)[:, None] for values in zip(*ways, strict=True))
    right = np.arange(np.searchsorted(tails.group, -begin - 1), len(tails.group))
    peak = held + np.maximum(working, kept + tail.peak[right])
    left = np.broadcast_to(-1 - np.arange(len(ways))[:, None], peak.shape)
    right = np.broadcast_to(right, peak.shape)
    once = Points(*map(np.ravel, (peak, extra + tail.extra[right], left, right)))

    left, right = tails.cheapest(-groups.group, group.peak - held)
    by_group = Points(group.peak[left], group.extra[left] + tail.extra[right], left, right)

    right, left = groups.cheapest(-tails.group, held + tail.peak)
    by_tail = Points(held + tail.peak[right], group.extra[left] + tail.extra[right], left, right)
    return Points.join(once, by_group, by_tail)


def _front(peaks: np.ndarray, extras: np.ndarray) -> np.ndarray:
    """Returns the indices of the points that no other point beats, by rising peak."""
    indices = np.arange(len(peaks))
    if len(peaks) > 400:  # The front of a few beats most, so that they need not be sorted.
        few = _front(peaks[::8], extras[::8]) * 8
        limits = np.concatenate([[np.inf], extras[few]])
        indices = np.flatnonzero(extras < limits[np.searchsorted(peaks[few], peaks)])
    indices = indices[np.lexsort((extras[indices], peaks[indices]))]
    extras = extras[indices]
    cheapest = np.minimum.accumulate(extras)
    return indices[np.concatenate([[True], extras[1:] < cheapest[:-1]])]


def _even_steps(peaks: np.ndarray, extras: np.ndarray, most: int) -> np.ndarray:
    """Returns at most `most` indices into a front: both its ends, and even steps in between."""
    if len(peaks) <= most:
        return np.arange(len(peaks))
    along = (peaks - peaks[0]) / (peaks[-1] - peaks[0])
    along += (extras[0] - extras) / (extras[0] - extras[-1])
    return np.unique(np.searchsorted(along, np.linspace(0, along[-1], most)))


__all__ = [
    "Again",
    "ChainLink",
    "Choice",
    "Item",
    "Once",
    "Way",
    "extra_of",
    "ladder",
    "pareto",
    "peak_of",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan of the whole chain, with its memory and FLOPs."""

    peak_bytes: int
    extra_flops: float
    items: tuple[Item, ...]


def pareto(links: Sequence[ChainLink]) -> list[Choice]:
    """Returns the plans that no other plan beats in both memory and FLOPs.

    Peaks fall and FLOPs rise strictly. For up to about 20 segments, and for more where segments are
    alike, every plan is optimal and none is missing. Otherwise fronts are thinned: plans slightly
    better than those returned may exist. Peaks and FLOPs are exact in every case.

    Args:
        links: the segments, in the order of their forward.
    """
    fronts = Fronts(links)
    tails = fronts.tails[-1]
    whole = np.flatnonzero(tails.group == 0)  # plans from segment 0 to the last
    return [
        Choice(int(peak), float(extra), fronts.items(0, len(links), int(left), int(right)))
        for peak, extra, left, right in zip(*tails.points.at(whole[::-1]), strict=True)
    ]


def ladder(links: Sequence[ChainLink], ratio: float = 0.93) -> list[Choice]:
    """Returns some choices of `pareto(links)`, with the first and the last always among them.

    Args:
        links: the segments, in the order of their forward.
        ratio: largest peak of a choice, as a share of the peak of the choice before. Only the
            first and the last may be closer, where no choice lies between them.
    """
    choices = pareto(links)
    rungs = choices[:1]
    for choice in choices[1:]:
        if choice.peak_bytes <= ratio * rungs[-1].peak_bytes:
            rungs.append(choice)
    if rungs[-1] is not choices[-1]:
        rungs[max(1, len(rungs) - 1) :] = choices[-1:]
    return rungs
