"""Which segments of a chain to keep and which to compute again, for every budget of memory.

    peak                       pareto    a b c d e    nothing beats one of these in both
     | a b                     ladder    a c e        each at most `ratio` of the peak before
     |      c  d
     |              e          The first costs the fewest FLOPs, the last the least memory.
     +-------------- extra

`recompute_plan.py` says what a plan is, `recompute_fronts.py` how the best ones are found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from millrace.recomputation.pareto import Fronts
from millrace.recomputation.plan import Again, Item, Link, Once, Way, extra_of, peak_of

__all__ = [
    "Again",
    "Choice",
    "Item",
    "Link",
    "Once",
    "Way",
    "extra_of",
    "ladder",
    "pareto",
    "peak_of",
]


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan of the whole chain, and what it takes."""

    peak_bytes: int
    extra_flops: float
    items: tuple[Item, ...]


def pareto(links: Sequence[Link]) -> list[Choice]:
    """Returns the plans that no other plan beats in both memory and FLOPs.

    Peaks fall and FLOPs rise strictly. For up to 20 segments or so each of these is optimal, and
    none is missing; for more, too, where segments are alike. Otherwise fronts are thinned: then
    there may be plans a little better than those returned, whose peaks and FLOPs are still exact.

    Args:
        links: the segments, in the order of their forward.
    """
    fronts = Fronts(links)
    rests = fronts.rests[-1]
    whole = np.flatnonzero(rests.group == 0)  # what begins at segment 0 and ends with the last
    return [
        Choice(int(peak), float(extra), fronts.items(0, len(links), int(left), int(right)))
        for peak, extra, left, right in zip(*rests.points.at(whole[::-1]), strict=True)
    ]


def ladder(links: Sequence[Link], ratio: float = 0.93) -> list[Choice]:
    """Returns some choices of `pareto(links)`, with the first and the last always among them.

    Args:
        links: the segments, in the order of their forward.
        ratio: the peak of each choice is at most so much of the one before. Only where nothing
            lies between the first and the last these may be closer.
    """
    choices = pareto(links)
    rungs = choices[:1]
    for choice in choices[1:]:
        if choice.peak_bytes <= ratio * rungs[-1].peak_bytes:
            rungs.append(choice)
    if rungs[-1] is not choices[-1]:
        rungs[max(1, len(rungs) - 1) :] = choices[-1:]
    return rungs
