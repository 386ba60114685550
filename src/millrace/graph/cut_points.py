"""Where a traced step is cut so that millrace can choose what is kept: a chain of segments.

    equation   1   2   3   4   5   6   7      bytes that cross the gaps    8 2 8 8 2 8
    cut            |           |              where least crosses

A gap that one value crosses is an articulation point of the graph. Where branches run side by side
there is none, and the gap that the fewest bytes cross is the next best.
"""

import math
from collections.abc import Collection, Sequence

from millrace._compat.jaxpr import Graph, Var, variables
from millrace.graph.segments import dense, follows_from_both, pulled

MOST_SEGMENTS = 64  # to choose from; more take longer to plan and differ little


def levels_by_cut_points(
    graph: Graph, weights: Collection[Var], most: int = MOST_SEGMENTS
) -> list[int]:
    """Returns the segment of each equation, of up to `most` segments of similar size.

    The size of a segment is that of all values made in it.
    """
    mixed = follows_from_both(graph, weights)
    order = [k for k, is_mixed in enumerate(mixed) if is_mixed]
    made = [sum(map(nbytes, graph.equations[k].outvars)) for k in order]
    crossing = _crossing(graph, order)
    gaps = _chosen_gaps(made, crossing, most)
    levels: list[int | None] = [None] * len(mixed)
    level = 0
    for place, k in enumerate(order):
        levels[k] = level
        level += place in gaps
    return dense(pulled(graph, levels))


def nbytes(var: Var) -> int:
    """Returns the bytes of a value."""
    aval = var.aval
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4)


def _crossing(graph: Graph, order: Sequence[int]) -> list[int]:
    """Returns the bytes that are made up to each equation and taken after it."""
    place_of = {var: p for p, k in enumerate(order) for var in graph.equations[k].outvars}
    last: dict[Var, int] = {}
    for place, k in enumerate(order):
        for var in variables(graph.equations[k].invars):
            if var in place_of:
                last[var] = place
    change = [0] * (len(order) + 1)
    for var, end in last.items():
        change[place_of[var]] += nbytes(var)
        change[end] -= nbytes(var)
    crossing, total = [], 0
    for delta in change[: len(order)]:
        total += delta
        crossing.append(total)
    return crossing


def _chosen_gaps(made: Sequence[int], crossing: Sequence[int], most: int) -> set[int]:
    """Returns the gaps to cut at: in each of `most` equal shares the one that least crosses."""
    total = sum(made)
    best: dict[int, int] = {}
    size = 0
    for place in range(len(made) - 1):
        size += made[place]
        share = size * most // (total + 1)
        if share not in best or crossing[place] <= crossing[best[share]]:
            best[share] = place
    shares = sorted(best)
    gaps = set()
    for place, share in enumerate(shares):
        near = [crossing[best[other]] for other in shares[max(0, place - 1) : place + 2]]
        if crossing[best[share]] <= 2 * min(near):
            gaps.add(best[share])
    return gaps
