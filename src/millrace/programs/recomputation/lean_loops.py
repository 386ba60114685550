"""The body of a loop, keeping as little for backward as its products require."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

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
from millrace.programs.recomputation.costs import nbytes
from millrace.programs.recomputation.joint_graph import Run, joint_graph
from millrace.programs.recomputation.least_kept import least_kept


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
