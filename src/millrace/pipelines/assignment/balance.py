"""Stages of equal cost: the assignment whose most expensive stage is cheapest.

    call  cost  takes           2 stages     a d | b c e     costs 5 5
    a     4                                  but a b | c d e costs 7 3
    b     3     a
    c     1     b
    d     1     a
    e     1     c d

A stage can end after any set of calls that contains all their producers (a "downset"). Models are
chains with short branches and have few of these sets, so an exhaustive search finds the best chain
of them. Where there are many, only the cuts of the execution order are searched; a model without
branches has no others.
"""

from collections.abc import Sequence

import numpy as np

from millrace.errors import OptionError

MOST_DOWNSETS = 4096  # the search takes half a second for 4 stages; ResNet50 has 241


def balance(
    costs: Sequence[float], edges: Sequence[Sequence[int]], num_stages: int
) -> tuple[int, ...]:
    """Returns the stage of each call.

    Stages never decrease along an edge, and none is empty. Of the assignments whose most expensive
    stage costs least, the one with the fewest values crossing the cuts between stages is returned.

    Args:
        costs: of each call in execution order, in any unit, none negative.
        edges: for each call, the numbers of the earlier calls whose values it takes.
        num_stages: number of stages.

    Raises:
        OptionError: if there are fewer calls than stages, or `num_stages` is below 1.
    """
    if not 1 <= num_stages <= len(costs):
        raise OptionError(
            f"A model of {len(costs)} layer calls cannot be cut into {num_stages} stages. Set a "
            f"number of stages from 1 to {len(costs)}."
        )
    ends = _downsets(edges) or _prefixes(len(costs))
    held = np.array(ends, dtype=bool)
    chosen = _best_chain(held, held @ np.asarray(costs, float), _crossings(held, edges), num_stages)
    # A call's stage is the number of stages that end before it.
    return tuple(int(count) for count in (~held[chosen]).sum(axis=0))


def _prefixes(calls: int) -> list[tuple[bool, ...]]:
    return [tuple(call < size for call in range(calls)) for size in range(calls + 1)]


def _downsets(edges: Sequence[Sequence[int]]) -> list[tuple[bool, ...]] | None:
    """Returns all sets of calls that contain their producers, smallest first; None if too many."""
    needs = [sum(1 << producer for producer in set(taken)) for taken in edges]
    level, downsets = [0], [0]
    for _ in needs:
        larger: dict[int, None] = {}
        for members in level:
            for call, need in enumerate(needs):
                if not members >> call & 1 and need & ~members == 0:
                    larger[members | 1 << call] = None
        level = list(larger)
        downsets += level
        if len(downsets) > MOST_DOWNSETS:
            return None
    return [tuple(bool(members >> call & 1) for call in range(len(needs))) for members in downsets]


def _crossings(held: np.ndarray, edges: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns for each end the number of values computed before it and taken after it."""
    crossing = np.zeros(held.shape, dtype=bool)
    for call, taken in enumerate(edges):
        for producer in taken:
            crossing[:, producer] |= held[:, producer] & ~held[:, call]
    return crossing.sum(axis=1)


def _best_chain(
    held: np.ndarray, costs: np.ndarray, crossings: np.ndarray, num_stages: int
) -> list[int]:
    """Returns the ends of all stages but the last: of least cost, then of fewest crossings.

    One search finds the least cost. A second search, among stages of at most that cost, counts
    crossings. A single search would reject an early stage for its cost even where a later stage
    costs more.
    """
    packed = np.packbits(held, axis=1)
    inside = [np.flatnonzero(~(packed[:i] & ~packed[i]).any(axis=1)) for i in range(len(held))]

    dearest = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    for _ in range(num_stages):
        dearest = np.array(
            [
                np.maximum(dearest[j], costs[i] - costs[j]).min(initial=np.inf)
                for i, j in enumerate(inside)
            ]
        )
    limit = dearest[-1] + 1e-9 * costs[-1]  # sums of floats differ by their order

    fewest = np.where(np.arange(len(held)) == 0, 0.0, np.inf)
    before: list[list[int]] = []
    for _ in range(num_stages):
        totals = [
            np.where(costs[i] - costs[j] <= limit, fewest[j] + crossings[j], np.inf)
            for i, j in enumerate(inside)
        ]
        links = zip(inside, totals, strict=True)
        before.append([int(j[total.argmin()]) if len(j) else 0 for j, total in links])
        fewest = np.array([total.min(initial=np.inf) for total in totals])
    end, ends = len(held) - 1, []
    for starts in reversed(before):
        end = starts[end]
        ends.append(end)
    return ends[:-1][::-1]  # the first stage starts at the empty set
