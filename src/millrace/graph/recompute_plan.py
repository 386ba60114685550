"""What a chain of segments keeps for its backward, and what it computes again for it.

    links 0 1 2 3                                               held while the last one runs
    Once(0) Once(1) Once(2) Once(3)                             inputs and kept bytes of 0 1 2
    Again(Once(0) Once(1)) Once(2) Once(3)                      input of 0, input and kept of 2
    Again(Again(Once(0)) Once(1)) Again(Once(2)) Once(3)        inputs of 0 and 2

`Once` runs a link in one of its ways. `Again` is a group whose forward keeps only the group's
input: right before the group's backward it runs a second time, as the items in it say.

    peak()             = 0
    peak(first, *rest) = max(own(first), held(first) + peak(rest))

                  held            own              extra
    Once(s, w)    input + kept    input + working  the way's
    Again(items)  input           peak(items)      the forwards of its links + the extra of items
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a link: what it keeps, and what its backward computes again."""

    kept_bytes: int  # from its forward until its backward, besides the link's input
    working_bytes: int  # while either of them runs; with `kept_bytes`, without the input
    extra_flops: float  # that its backward adds


@dataclass(frozen=True, slots=True)
class Link:
    """A segment of the chain."""

    input_bytes: int  # from the links before, held until its backward
    forward_flops: float
    ways: tuple[Way, ...]  # to run it, in any order


@dataclass(frozen=True, slots=True)
class Once:
    """A link whose forward runs once, and keeps what its way says."""

    link: int
    way: int


@dataclass(frozen=True, slots=True)
class Again:
    """Consecutive links of which only the input is kept, until they run a second time."""

    items: tuple["Item", ...]


Item = Once | Again


def peak_of(links: Sequence[Link], items: Sequence[Item]) -> int:
    """Returns the bytes that are alive at once, at most."""
    peak = 0
    for item in reversed(items):
        first = links[links_of(item)[0]]
        if isinstance(item, Once):
            way = first.ways[item.way]
            own, held = first.input_bytes + way.working_bytes, first.input_bytes + way.kept_bytes
        else:
            own, held = peak_of(links, item.items), first.input_bytes
        peak = max(own, held + peak)
    return peak


def extra_of(links: Sequence[Link], items: Sequence[Item]) -> float:
    """Returns the FLOPs that the backward adds."""
    extra = 0.0
    for item in reversed(items):
        if isinstance(item, Once):
            own = links[item.link].ways[item.way].extra_flops
        else:
            forward = math.fsum(links[link].forward_flops for link in links_of(item))
            own = forward + extra_of(links, item.items)
        extra = own + extra
    return extra


def links_of(item: Item) -> list[int]:
    """Returns the numbers of the links that an item runs."""
    if isinstance(item, Once):
        return [item.link]
    return [link for inner in item.items for link in links_of(inner)]
