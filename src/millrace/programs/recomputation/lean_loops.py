"""The body of a loop, keeping as little for backward as its products require.

    z = x @ w      product, 8 bytes          kept: z, 8 bytes
    a = sigmoid(z)     needed                not: a and b, 16 bytes
    b = tanh(z)        needed

The fewest bytes are a minimum cut of the graph of values: the products are on one side, the needed
values on the other, and each kept value is an edge that costs its bytes.
"""

from collections.abc import Collection, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from millrace._compat.jaxpr import (
    Equation,
    Graph,
    Var,
    as_function,
    evaluated,
    inlined,
    is_literal,
    spec_of,
    trace,
    used,
    variables,
)
from millrace.programs.recomputation.costs import PRODUCTS, nbytes
from millrace.programs.recomputation.joint_graph import Run, joint_graph


def lean_body(body: Graph) -> Run:
    """Returns the function of one iteration of a loop, keeping as little as possible for backward.

    All compilers honour `jax.checkpoint` within a loop. It keeps values by name, so every value
    gets a name.
    """
    named = trace(_named(inlined(body)), *map(spec_of, body.invars))[0]
    learns = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in named.invars]
    answered = [jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in named.outvars]
    joint = joint_graph(named, learns, answered)
    early = _before(joint.graph, joint.cotangents)
    names = {var: _name(equation) for equation in early for var in equation.outvars}
    residuals = used(joint.graph, joint.gradients, names).invars
    returned = set(variables(joint.results))  # kept anyway, if anything is
    cost = {
        var: 1 if var in returned else nbytes(var)
        for var, name in names.items()
        if name is not None
    }
    kept = least_kept(early, [var for var in residuals if var in names], cost)
    policy = jax.checkpoint_policies.save_only_these_names(*(names[var] for var in kept))
    return jax.checkpoint(as_function(named), policy=policy, prevent_cse=False)


def _named(graph: Graph) -> Run:
    def run(*values: jax.Array) -> list[jax.Array]:
        environment = dict(zip(graph.invars, values, strict=True)) | graph.constants
        for equation in graph.equations:
            results = evaluated(equation, environment)
            for var, value in zip(equation.outvars, results, strict=True):
                environment[var] = checkpoint_name(value, f"{_NAME}{len(environment)}")
        return [var.val if is_literal(var) else environment[var] for var in graph.outvars]

    return run


_NAME = "mr.value."


def _name(equation: Equation) -> str | None:
    name = equation.params.get("name") if equation.primitive.name == "name" else None
    return name if name is not None and name.startswith(_NAME) else None


def _before(graph: Graph, received: Sequence[Var]) -> list[Equation]:
    """Returns the equations that need no cotangent."""
    late = set(received)
    early: list[Equation] = []
    for equation in graph.equations:
        if any(var in late for var in variables(equation.invars)):
            late.update(equation.outvars)
        else:
            early.append(equation)
    return early


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
