"""What a chain of segments keeps for its backward, and what it computes again for it.

    segments 0 1 2 3                                         held while 3 runs
    Once(0) Once(1) Once(2) Once(3)                          inputs and kept bytes of 0, 1 and 2
    Again(Once(0) Once(1)) Once(2) Once(3)                   input of 0, input and kept bytes of 2
    Again(Again(Once(0)) Once(1)) Again(Once(2)) Once(3)     inputs of 0 and 2

`Once` runs a segment in one of its ways, which says what is kept. `Again` is a group of segments
whose forward keeps only the group's input: right before the group's backward it runs a second
time, as the items in it say.

    peak()             = 0
    peak(first, *rest) = max(own(first), held(first) + peak(rest))

                  held            own              extra
    Once(s, w)    input + kept    input + working  that of the way
    Again(items)  input           peak(items)      the forwards of its segments + that of items
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a segment."""

    kept_bytes: int  # from its forward until its backward, besides the input
    working_bytes: int  # while either of them runs: with `kept_bytes`, without the input
    extra_flops: float  # that its backward adds


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A segment of the chain, as far as memory and FLOPs go."""

    input_bytes: int  # what comes from the segments before, and is held until the backward
    forward_flops: float
    ways: tuple[Way, ...]  # at least one, in any order


@dataclass(frozen=True, slots=True)
class Once:
    """A segment whose forward runs once, and keeps what its way says."""

    segment: int
    way: int


@dataclass(frozen=True, slots=True)
class Again:
    """Consecutive segments of which only the input is kept, until they run a second time."""

    items: tuple["Item", ...]


Item = Once | Again


def peak_of(links: Sequence[ChainLink], items: Sequence[Item]) -> int:
    """Returns the most bytes that are alive at once when the chain runs as `items` say."""
    peak = 0
    for item in reversed(items):
        if isinstance(item, Once):
            link = links[item.segment]
            way = link.ways[item.way]
            own, held = link.input_bytes + way.working_bytes, link.input_bytes + way.kept_bytes
        else:
            own, held = peak_of(links, item.items), links[segments_of(item)[0]].input_bytes
        peak = max(own, held + peak)
    return peak


def extra_of(links: Sequence[ChainLink], items: Sequence[Item]) -> float:
    """Returns the FLOPs that the backward adds when the chain runs as `items` say."""
    extra = 0.0  # from the end on, as `Fronts` adds it up: sums of floats differ by their order
    for item in reversed(items):
        if isinstance(item, Once):
            own = links[item.segment].ways[item.way].extra_flops
        else:
            own = forward_of(links[segment] for segment in segments_of(item))
            own += extra_of(links, item.items)
        extra = own + extra
    return extra


def forward_of(links: Iterable[ChainLink]) -> float:
    """Returns the FLOPs of one forward of `links`, rounded once."""
    return math.fsum(link.forward_flops for link in links)


def segments_of(item: Item) -> list[int]:
    """Returns the segments that an item runs."""
    if isinstance(item, Once):
        return [item.segment]
    return [segment for inner in item.items for segment in segments_of(inner)]
