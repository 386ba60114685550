"""Where a traced step is cut into segments, and the fewest bytes that backward needs of each.

    z = x @ w      product, 8 bytes          kept: z, 8 bytes
    a = sigmoid(z)     needed                not: a and b, 16 bytes
    b = tanh(z)        needed

It is a minimum cut of the graph of values: one side holds the products, the other what is needed,
and each value that is kept is an edge that costs its bytes.

    equation   1   2   3   4   5   6   7      bytes that cross the gaps    8 2 8 8 2 8
    cut            |           |              where least crosses

A gap that one value crosses is an articulation point of the graph. Where branches run side by side
there is none, and the gap that the fewest bytes cross is the next best.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from millrace._compat.jaxpr import Equation, Graph, Var, inner_equations, variables
from millrace.recomputation.segments import dense, follows_from_both, pulled

# What takes most of the FLOPs, so that the rest can be run again for little; and random numbers,
# of which each takes a hundred.
PRODUCTS = frozenset(
    {
        "conv_general_dilated",
        "dot_general",
        "ragged_dot_general",
        "random_bits",
        "rng_bit_generator",
        "scan",
        "threefry2x32",
        "while",
    }
)

_LARGE = 2**30  # of an edge that cannot be cut; the flow solver takes 32 bits


def least_kept(
    equations: Sequence[Equation], needed: Collection[Var], cost: Mapping[Var, int]
) -> list[Var]:
    """Returns the values to keep, in the order in which they are made.

    Args:
        equations: of a forward.
        needed: values that backward takes, made by the equations or given to them.
        cost: bytes of each value that may be kept; others may not.
    """
    unit = max(1, sum(cost.values()) // (_LARGE // 2))
    places = {var: 2 * k for k, var in enumerate(_values(equations))}  # in; out is one more
    source, sink = 2 * len(places), 2 * len(places) + 1
    edges = [
        (place, place + 1, max(1, cost[var] // unit) if var in cost else _LARGE)
        for var, place in places.items()
    ]
    for equation in equations:
        is_product = equation.primitive.name in PRODUCTS
        for out in equation.outvars:
            if is_product:
                edges.append((source, places[out], _LARGE))
                continue
            taken = dict.fromkeys(v for v in variables(equation.invars) if v in places)
            edges += [(places[var] + 1, places[out], _LARGE) for var in taken]
    edges += [(places[var] + 1, sink, _LARGE) for var in needed if var in places]
    reached = _reached(edges, source, sink)
    return [var for var, place in places.items() if place in reached and place + 1 not in reached]


def _values(equations: Sequence[Equation]) -> list[Var]:
    return [var for equation in equations for var in equation.outvars]


def _reached(edges: Sequence[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """Returns the nodes that the source reaches past a maximum flow."""
    starts, ends, capacities = np.array(edges, dtype=np.int32).reshape(-1, 3).T
    shape = (sink + 1, sink + 1)
    graph = csr_matrix((capacities, (starts, ends)), shape)
    left = graph - maximum_flow(graph, source, sink).flow
    left.eliminate_zeros()
    return set(breadth_first_order(left, source, return_predecessors=False).tolist())


MOST_SEGMENTS = 64  # to choose from; more take longer to plan and differ little


def levels_by_cut_points(
    graph: Graph, weights: Collection[Var], most: int = MOST_SEGMENTS
) -> list[int]:
    """Returns the segment of each equation, of up to `most` segments of similar size.

    Each has a product at least: what lies between two of them costs little to run again, and the
    compiler makes it part of one or the other. The size of a segment is that of all values made in
    it.
    """
    mixed = follows_from_both(graph, weights)
    order = [k for k, is_mixed in enumerate(mixed) if is_mixed]
    made = [sum(map(nbytes, graph.equations[k].outvars)) for k in order]
    products = [has_product(graph.equations[k]) for k in order]
    gaps = _chosen_gaps(made, _crossing(graph, order), products, most)
    levels: list[int | None] = [None] * len(mixed)
    level = 0
    for place, k in enumerate(order):
        levels[k] = level
        level += place in gaps
    return dense(pulled(graph, levels))


def has_product(equation: Equation) -> bool:
    """Whether an equation takes most of the FLOPs of what is around it."""
    if equation.primitive.name in PRODUCTS:
        return True
    return any(any(map(has_product, inner)) for inner in inner_equations(equation))


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


def _chosen_gaps(
    made: Sequence[int], crossing: Sequence[int], products: Sequence[bool], most: int
) -> set[int]:
    """Returns the gaps to cut at.

    That is between two products the first of those that least crosses: what a product makes is then
    handed on, and what follows from it need not be kept as well. Where these are many, it is in
    each of `most` - 1 equal shares the one that least crosses.
    """
    between: dict[int, int] = {}
    number = sum(products[:1])
    for place in range(len(made) - 1):
        if number and (number not in between or crossing[place] < crossing[between[number]]):
            between[number] = place
        number += products[place + 1]
    between.pop(number, None)  # after the last product
    sizes = list(accumulate(made))
    best: dict[int, int] = {}
    for place in between.values():
        share = place if len(between) < most else sizes[place] * (most - 1) // (sizes[-1] + 1)
        if share not in best or crossing[place] <= crossing[best[share]]:
            best[share] = place
    gaps = sorted(best.values())
    return {
        gap
        for place, gap in enumerate(gaps)
        if crossing[gap] <= 2 * min(crossing[near] for near in gaps[max(0, place - 1) : place + 2])
    }
