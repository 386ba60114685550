"""The cuts of a traced step into segments, and the fewest bytes that backward needs of each.

    z = x @ w      product, 8 bytes          kept: z, 8 bytes
    a = sigmoid(z)     needed                not: a and b, 16 bytes
    b = tanh(z)        needed

This is a minimum cut of the graph of values: the products are on one side, the needed values on the
other, and each kept value is an edge that costs its bytes.

    equation   1   2   3   4   5   6   7      bytes that cross the gaps    8 2 8 8 2 8
    cut            |           |              where the fewest bytes cross

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

# The primitives that take most of the FLOPs: all others are cheap to run again. Random numbers are
# among them, since each takes a hundred operations.
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

_LARGE = 2**30  # capacity of an edge that cannot be cut; the flow solver takes 32 bits


def least_kept(
    equations: Sequence[Equation], needed: Collection[Var], cost: Mapping[Var, int]
) -> list[Var]:
    """Returns the values to keep, in the order in which they are computed.

    Args:
        equations: of a forward.
        needed: values that backward takes: results of the equations, or their inputs.
        cost: bytes of each value that may be kept; values without an entry may not.
    """
    bytes_per_unit = max(1, sum(cost.values()) // (_LARGE // 2))
    # Of each value the node that its edge begins at; the edge ends at the next one.
    nodes = {var: 2 * k for k, var in enumerate(_values(equations))}
    source, sink = 2 * len(nodes), 2 * len(nodes) + 1
    edges = [
        (node, node + 1, max(1, cost[var] // bytes_per_unit) if var in cost else _LARGE)
        for var, node in nodes.items()
    ]
    for equation in equations:
        is_product = equation.primitive.name in PRODUCTS
        for out in equation.outvars:
            if is_product:
                edges.append((source, nodes[out], _LARGE))
                continue
            taken = dict.fromkeys(v for v in variables(equation.invars) if v in nodes)
            edges += [(nodes[var] + 1, nodes[out], _LARGE) for var in taken]
    edges += [(nodes[var] + 1, sink, _LARGE) for var in needed if var in nodes]
    reached = _reached(edges, source, sink)
    return [var for var, node in nodes.items() if node in reached and node + 1 not in reached]


def _values(equations: Sequence[Equation]) -> list[Var]:
    return [var for equation in equations for var in equation.outvars]


def _reached(edges: Sequence[tuple[int, int, int]], source: int, sink: int) -> set[int]:
    """Returns the nodes that the source still reaches once the flow is at its maximum."""
    starts, ends, capacities = np.array(edges, dtype=np.int32).reshape(-1, 3).T
    shape = (sink + 1, sink + 1)
    graph = csr_matrix((capacities, (starts, ends)), shape)
    left = graph - maximum_flow(graph, source, sink).flow
    left.eliminate_zeros()
    return set(breadth_first_order(left, source, return_predecessors=False).tolist())


MOST_SEGMENTS = 64  # more take longer to plan and make little difference


def levels_by_cut_points(
    graph: Graph, weights: Collection[Var], most: int = MOST_SEGMENTS
) -> list[int]:
    """Returns the segment of each equation, of up to `most` segments of similar size.

    Each segment has at least one product: the equations between two products are cheap to run
    again, and the compiler fuses them with one or the other. The size of a segment is that of all
    values computed in it.
    """
    mixed = follows_from_both(graph, weights)
    order = [k for k, is_mixed in enumerate(mixed) if is_mixed]
    sizes = [sum(map(nbytes, graph.equations[k].outvars)) for k in order]
    products = [has_product(graph.equations[k]) for k in order]
    gaps = _chosen_gaps(sizes, _crossing(graph, order), products, most)
    levels: list[int | None] = [None] * len(mixed)
    level = 0
    for index, k in enumerate(order):
        levels[k] = level
        level += index in gaps
    return dense(pulled(graph, levels))


def has_product(equation: Equation) -> bool:
    """Whether an equation, or one inside its loops and branches, is a product."""
    if equation.primitive.name in PRODUCTS:
        return True
    return any(any(map(has_product, inner)) for inner in inner_equations(equation))


def nbytes(var: Var) -> int:
    """Returns the bytes of a value."""
    aval = var.aval
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4)


def _crossing(graph: Graph, order: Sequence[int]) -> list[int]:
    """Returns for each equation the bytes computed up to it and taken after it."""
    index_of = {var: p for p, k in enumerate(order) for var in graph.equations[k].outvars}
    last: dict[Var, int] = {}
    for index, k in enumerate(order):
        for var in variables(graph.equations[k].invars):
            if var in index_of:
                last[var] = index
    change = [0] * (len(order) + 1)
    for var, end in last.items():
        change[index_of[var]] += nbytes(var)
        change[end] -= nbytes(var)
    crossing, total = [], 0
    for delta in change[: len(order)]:
        total += delta
        crossing.append(total)
    return crossing


def _chosen_gaps(
    sizes: Sequence[int], crossing: Sequence[int], products: Sequence[bool], most: int
) -> set[int]:
    """Returns the gaps to cut at.

    Between two products it is the first of the gaps that the fewest bytes cross: the result of the
    product is then handed on, and the values that follow from it need not be kept as well. Where
    there are more such gaps than `most` - 1, the one that the fewest bytes cross is taken from each
    of `most` - 1 equal shares.
    """
    between: dict[int, int] = {}
    number = sum(products[:1])
    for index in range(len(sizes) - 1):
        if number and (number not in between or crossing[index] < crossing[between[number]]):
            between[number] = index
        number += products[index + 1]
    between.pop(number, None)  # after the last product
    sizes = list(accumulate(sizes))
    best: dict[int, int] = {}
    for index in between.values():
        share = index if len(between) < most else sizes[index] * (most - 1) // (sizes[-1] + 1)
        if share not in best or crossing[index] <= crossing[best[share]]:
            best[share] = index
    gaps = sorted(best.values())
    return {
        gap
        for index, gap in enumerate(gaps)
        if crossing[gap] <= 2 * min(crossing[near] for near in gaps[max(0, index - 1) : index + 2])
    }
