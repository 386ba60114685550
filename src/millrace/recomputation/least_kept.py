"""The fewest bytes from which all that backward needs can be computed again, without products.

    z = x @ w      product, 8 bytes          kept: z, 8 bytes
    a = sigmoid(z)     needed                not: a and b, 16 bytes
    b = tanh(z)        needed

It is a minimum cut of the graph of values: one side holds the products, the other what is needed,
and each value that is kept is an edge that costs its bytes.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from millrace._compat.jaxpr import Equation, Var, variables

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
